"""The devices of a Ray cluster, and tasks that run on them: started, and started again where a worker dies.

It knows nothing of studies; `fedskip.study.ray_workers` brings the tasks.
"""
