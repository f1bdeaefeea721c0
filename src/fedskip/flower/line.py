"""The server's line to the sites: Flower's grid, with names for its nodes, shorter waits and an audit log."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedskip.flower.audit import Audit
from fedskip.flower.messages import measured, read_hello
from fedskip.flower.work import PROTOCOL
from fedskip.input.errors import InputError

log = logging.getLogger(__name__)

POLL = 0.25, 0.5  # seconds between two looks for replies: at first, and after a while
HELLO = 300.0  # seconds that a new node has to say who it is


class Line(Grid):
    """Flower's grid. Nodes have random numbers; here they are known by the names that sites have."""

    def __init__(self, grid: Grid, clients: Iterable[str], audit: Audit) -> None:
        self.grid, self.clients, self.audit = grid, list(clients), audit
        self.sites: dict[int, dict[str, Any]] = {}  # by node: what it says of itself
        self._strangers: set[int] = set()  # nodes that are no clients of this federation
        self._sent: dict[str, int] = {}  # by message, of those sent last: the node that it went to

    # --- who is there --------------------------------------------------------------------------------

    def roll_call(self) -> dict[int, int]:
        """The clients that are there, by number, and their nodes; new nodes are asked who they are."""
        online = self._online()
        self._strangers &= online.keys()  # one that comes back may have mended its ways
        registered = {node: name for node, name in online.items() if node not in self._strangers}
        for node in [node for node in self.sites if node not in registered]:
            del self.sites[node]  # it may come back as somebody else
        unknown = [node for node in registered if node not in self.sites]
        asked = [Message(RecordDict(), node, f"{MessageType.QUERY}.hello", ttl=HELLO) for node in unknown]
        answers = {self.node_of(reply): reply for reply in self.send_and_receive(asked, timeout=HELLO)}
        for node in unknown:
            if node in answers and not answers[node].has_error():
                self._introduce(node, registered[node], answers[node].content)
        return {self.clients.index(site["name"]): node for node, site in self.sites.items()}

    def _introduce(self, node: int, registered: str, content: RecordDict) -> None:
        try:
            site = read_hello(content)
        except InputError as error:
            log.warning("node %d is not used: %s", node, error)
            self._strangers.add(node)
            return
        name, why = site["name"], ""
        if name not in self.clients:
            why = "no client of this federation has that name"
        elif registered and registered != name:
            why = f"its key is registered for {registered}"
        elif site["protocol"] != PROTOCOL:
            why = f"its fedskip {site['fedskip']} speaks another protocol; install the same one"
        elif any(other["name"] == name for other in self.sites.values()):
            why = "another node has that name"
        if why:
            log.warning("node %d says it is %r and is not used: %s", node, name, why)
            self._strangers.add(node)
            return
        self.sites[node] = site
        log.info("%s is there, with %d samples", name, site["samples"])

    def forget(self, node: int) -> None:
        """Ask a node again who it is: something about it was not as expected."""
        self.sites.pop(node, None)

    def _online(self) -> dict[int, str]:
        """The nodes that are there, and the name for which a key is registered, if one is."""
        return {int(node.node_id): str(node.name) for node in self.grid.get_nodes()}

    # --- messages ------------------------------------------------------------------------------------

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send, then wait for all replies, within bounds; looks for them more often than Flower does."""
        messages = list(messages)
        if not messages:
            return []
        ids = list(self.grid.push_messages(messages))
        self._sent = {}
        for message, id in zip(messages, ids, strict=False):
            if id:
                self._sent[id] = message.metadata.dst_node_id
            self._note("sent", message, message.metadata.dst_node_id)
        waiting, replies = {id for id in ids if id}, list[Message]()
        end, pause = time.monotonic() + (timeout or float("inf")), POLL[0]
        while waiting:
            found = list(self.grid.pull_messages(waiting))
            replies += found
            waiting -= {reply.metadata.reply_to_message_id for reply in found}
            if not waiting or time.monotonic() >= end:
                break
            time.sleep(pause)
            pause = min(1.25 * pause, POLL[1])
        for reply in replies:
            self._note("received", reply, self.node_of(reply))
        return replies

    def node_of(self, reply: Message) -> int | None:
        """The node that a reply is of; its own word is not taken: Flower answers for nodes that died."""
        return self._sent.get(reply.metadata.reply_to_message_id)

    def _note(self, way: str, message: Message, node: int | None) -> None:
        name = self.sites.get(node or 0, {}).get("name", f"node {node}")
        kind = message.metadata.message_type
        if message.has_error():
            self.audit.note(way, kind, client=name, error=message.error.code)
            return
        size, digest = measured(message.content)
        self.audit.note(way, kind, client=name, bytes=size, digest=digest)

    # --- what is Flower's own ------------------------------------------------------------------------

    def set_run(self, run: Any) -> None:
        self.grid.set_run(run)

    @property
    def run(self) -> Any:
        return self.grid.run

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        return self.grid.create_message(*arguments, **named)

    def get_node_ids(self) -> Iterable[int]:
        return self.grid.get_node_ids()

    def get_nodes(self) -> Any:
        return self.grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self.grid.pull_messages(message_ids)
