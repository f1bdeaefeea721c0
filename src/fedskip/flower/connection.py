"""The server's connection to the clients: Flower's grid, whose nodes are known here by their clients' names."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedskip.errors import InputError
from fedskip.flower.job_spec import PROTOCOL
from fedskip.flower.messages import AuditLog, read_introduction

POLL = 0.25, 0.5  # seconds between two looks for replies: at first, and after a while
HELLO = 300.0  # seconds that a new node has to introduce itself
log = logging.getLogger(__name__)


class Connection:
    """Sends messages to clients and waits for their replies. Clients are numbered by their order."""

    def __init__(self, grid: Grid, names: Sequence[str], audit: AuditLog) -> None:
        self.grid, self.names, self.audit = grid, list(names), audit
        self.online: dict[int, dict[str, Any]] = {}  # by client: how it has introduced itself
        self._nodes: dict[int, int] = {}  # by client: Flower's number of its node
        self._refused: set[int] = set()  # nodes that are no clients of this federation

    # --- who is there --------------------------------------------------------------------------------

    def roll_call(self) -> dict[int, dict[str, Any]]:
        """The clients that are there now. New nodes are asked who they are."""
        nodes = {int(node.node_id): str(node.name) for node in self.grid.get_nodes()}
        self._refused &= nodes.keys()  # one that comes back is asked again
        for client in [client for client, node in self._nodes.items() if node not in nodes]:
            self.forget(client)
        known = self._refused | set(self._nodes.values())
        kind = f"{MessageType.QUERY}.hello"
        asked = [
            Message(RecordDict(), node, kind, ttl=HELLO) for node in nodes if node not in known
        ]
        replies = self._exchange(asked, HELLO)
        for node in nodes:
            if node in replies and not replies[node].has_error():
                self._introduce(node, nodes[node], replies[node].content)
        return self.online

    def _introduce(self, node: int, registered: str, content: RecordDict) -> None:
        """Accept a node as a client, or refuse it. `registered`: the name for which its key is."""
        try:
            about = read_introduction(content)
        except InputError as error:
            log.warning("node %d is not used: %s", node, error)
            self._refused.add(node)
            return
        name, why = about["name"], ""
        if name not in self.names:
            why = "no client of this federation has that name"
        elif registered and registered != name:
            why = f"its key is registered for {registered}"
        elif about["protocol"] != PROTOCOL:
            why = f"its fedskip {about['fedskip']} has another protocol; install the same one"
        elif self.names.index(name) in self._nodes:
            why = "another node has that name"
        if why:
            log.warning("node %d says it is %r and is not used: %s", node, name, why)
            self._refused.add(node)
            return
        client = self.names.index(name)
        self._nodes[client], self.online[client] = node, about
        log.info("%s is there, with %d samples", name, about["samples"])

    def forget(self, client: int) -> None:
        """Ask a client again who it is: its node has gone, or has not done what was expected."""
        del self._nodes[client], self.online[client]

    # --- messages ------------------------------------------------------------------------------------

    def exchange(
        self, kind: str, contents: Mapping[int, RecordDict], timeout: float
    ) -> dict[int, Message]:
        """Send a message to each of some clients; gives the replies that came in time, by client."""
        clients = {self._nodes[client]: client for client in contents}
        sent = [
            Message(contents[client], node, kind, ttl=timeout) for node, client in clients.items()
        ]
        return {clients[node]: reply for node, reply in self._exchange(sent, timeout).items()}

    def _exchange(self, sent: list[Message], timeout: float) -> dict[int, Message]:
        """Replies by node: by where the order went, as Flower itself answers for nodes that died."""
        if not sent:
            return {}
        for message in sent:
            self._note("sent", message, message.metadata.dst_node_id)
        ids = self.grid.push_messages(sent)
        waiting = {
            id: message.metadata.dst_node_id
            for id, message in zip(ids, sent, strict=False)
            if id  # none: it could not be sent
        }
        replies: dict[int, Message] = {}
        end, pause = time.monotonic() + timeout, POLL[0]
        while waiting:
            for reply in self.grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    replies[node] = reply
                    self._note("received", reply, node)
            if not waiting or time.monotonic() >= end:
                break
            time.sleep(pause)
            pause = min(1.25 * pause, POLL[1])
        return replies

    def _note(self, direction: str, message: Message, node: int) -> None:
        names = {node: self.names[client] for client, node in self._nodes.items()}
        self.audit.note(direction, message, client=names.get(node, f"node {node}"))
