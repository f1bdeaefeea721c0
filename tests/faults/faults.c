/* Makes the calls of a process that change files fail, or kills it there. For LD_PRELOAD on Linux.

   Calls on paths under a watched folder are counted once `faults_arm` has been called, and noted in a log, one
   line each: what was called, and for which path. At the n-th one something happens; see `enum how`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum how { COUNT, KILL, TEAR, FAIL, KEEP_FAILING }; /* TEAR: a write is cut in half, others are not begun */

static struct {
    char folder[PATH_MAX]; /* that is watched; "" : nothing is */
    char calls[256];       /* the calls that count, with a space around each; "" : all */
    char part[256];        /* that a path must hold; "" : any path */
    long at, seen;
    int how, error, log;
} armed = {.log = -1};

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

void faults_arm(const char *folder, const char *calls, const char *part, long at, int how, int error, const char *log) {
    armed.folder[0] = 0; /* what follows is not counted */
    if (calls[0]) snprintf(armed.calls, sizeof armed.calls, " %s ", calls);
    else armed.calls[0] = 0;
    snprintf(armed.part, sizeof armed.part, "%s", part);
    armed.at = at, armed.how = how, armed.error = error, armed.seen = 0;
    armed.log = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    snprintf(armed.folder, sizeof armed.folder, "%s", folder);
}

static int watched(const char *path) {
    size_t length = strlen(armed.folder);
    return !strncmp(path, armed.folder, length) && (path[length] == '/' || !path[length]);
}

/* The path of a name that is relative to a folder, or to the working folder. */
static void whole(int at, const char *name, char *path) {
    char link[64], base[PATH_MAX];
    ssize_t length;
    if (name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
        return;
    }
    if (at == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
    else snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    length = readlink(link, base, sizeof base - 1);
    base[length < 0 ? 0 : length] = 0;
    if (name[0]) snprintf(path, PATH_MAX, "%.2000s/%.2000s", base, name);
    else snprintf(path, PATH_MAX, "%s", base);
}

static void die(void) {
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

/* Count a call; what is to be done: COUNT (as always), TEAR (a write) or FAIL (errno is set). */
static int point(const char *call, int at, const char *name) {
    int before = errno, what = COUNT;
    char path[PATH_MAX], word[32], line[PATH_MAX + 64];
    if (!armed.folder[0] || !name) return COUNT;
    whole(at, name, path);
    snprintf(word, sizeof word, " %s ", call);
    if (watched(path) && (!armed.calls[0] || strstr(armed.calls, word)) && strstr(path, armed.part)) {
        long now = ++armed.seen;
        int length = snprintf(line, sizeof line, "%s %s\n", call, path + strlen(armed.folder));
        if (armed.log >= 0) syscall(SYS_write, armed.log, line, length);
        if (now == armed.at || (now > armed.at && armed.how == KEEP_FAILING)) what = armed.how;
        if (what == KILL || (what == TEAR && strcmp(call, "write"))) die();
        if (what == FAIL || what == KEEP_FAILING) {
            errno = armed.error;
            return FAIL;
        }
    }
    errno = before;
    return what;
}

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    int what = point("write", fd, "");
    if (what == FAIL) return -1;
    if (what == TEAR) {
        real(fd, data, size / 2);
        die();
    }
    return real(fd, data, size);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(writev);
    int what = point("write", fd, "");
    if (what == FAIL) return -1;
    if (what == TEAR) {
        real(fd, parts, count / 2);
        die();
    }
    return real(fd, parts, count);
}

#define WRITE_AT(name) \
    ssize_t name(int fd, const void *data, size_t size, off_t where) { \
        REAL(name); \
        int what = point("write", fd, ""); \
        if (what == FAIL) return -1; \
        if (what == TEAR) { \
            real(fd, data, size / 2, where); \
            die(); \
        } \
        return real(fd, data, size, where); \
    }
WRITE_AT(pwrite)
WRITE_AT(pwrite64)

#define OF_FILE(name) \
    int name(int fd) { \
        REAL(name); \
        return point(#name, fd, "") == FAIL ? -1 : real(fd); \
    }
OF_FILE(fsync)
OF_FILE(fdatasync)

int flock(int fd, int how) {
    static int (*real)(int, int);
    if (!real) real = dlsym(RTLD_NEXT, "flock");
    return point("flock", fd, "") == FAIL ? -1 : real(fd, how);
}

#define CUT(name) \
    int name(int fd, off_t length) { \
        REAL(name); \
        return point("truncate", fd, "") == FAIL ? -1 : real(fd, length); \
    }
CUT(ftruncate)
CUT(ftruncate64)

#define OF_PATH(name) \
    int name(const char *path) { \
        REAL(name); \
        return point(#name, AT_FDCWD, path) == FAIL ? -1 : real(path); \
    }
OF_PATH(unlink)
OF_PATH(rmdir)

int unlinkat(int at, const char *path, int flags) {
    REAL(unlinkat);
    return point("unlink", at, path) == FAIL ? -1 : real(at, path, flags);
}

int rename(const char *old, const char *new) {
    REAL(rename);
    return point("rename", AT_FDCWD, new) == FAIL ? -1 : real(old, new);
}

int renameat(int from, const char *old, int to, const char *new) {
    REAL(renameat);
    return point("rename", to, new) == FAIL ? -1 : real(from, old, to, new);
}

int mkdir(const char *path, mode_t mode) {
    static int (*real)(const char *, mode_t);
    if (!real) real = dlsym(RTLD_NEXT, "mkdir");
    return point("mkdir", AT_FDCWD, path) == FAIL ? -1 : real(path, mode);
}

int mkdirat(int at, const char *path, mode_t mode) {
    static int (*real)(int, const char *, mode_t);
    if (!real) real = dlsym(RTLD_NEXT, "mkdirat");
    return point("mkdir", at, path) == FAIL ? -1 : real(at, path, mode);
}

/* `create` where a file may come to be, `open` where it must be there: only those that are asked for count. */
static int opens(int at, const char *path, int flags) {
    if (flags & (O_CREAT | O_TRUNC)) return point("create", at, path);
    return strstr(armed.calls, " open ") ? point("open", at, path) : COUNT;
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        static int (*real)(const char *, int, ...); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = va_arg(more, mode_t); \
        va_end(more); \
        if (!real) real = dlsym(RTLD_NEXT, #name); \
        return opens(AT_FDCWD, path, flags) == FAIL ? -1 : real(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define OPEN_AT(name) \
    int name(int at, const char *path, int flags, ...) { \
        static int (*real)(int, const char *, int, ...); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = va_arg(more, mode_t); \
        va_end(more); \
        if (!real) real = dlsym(RTLD_NEXT, #name); \
        return opens(at, path, flags) == FAIL ? -1 : real(at, path, flags, mode); \
    }
OPEN_AT(openat)
OPEN_AT(openat64)
