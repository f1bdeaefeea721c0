"""The ClientApp: what a SuperNode runs for each message. Nothing else leaves the site than its replies."""

import logging
from collections.abc import Callable

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedskip.flower import audit, messages
from fedskip.flower.site import Place, Site
from fedskip.flower.work import Work

log = logging.getLogger(__name__)

app = ClientApp()


class SiteError(RuntimeError):
    """What the server gets to know of a failure: that there was one. The site's own log has the rest."""


def answered(message: Message, context: Context, act: Callable[[Site], RecordDict]) -> Message:
    """The reply to a message, noted in the site's audit log."""
    kind = message.metadata.message_type
    try:
        place = Place.of(context.node_config)
        book = audit.Audit(place.state_dir / audit.FILE)
        size, digest = messages.measured(message.content)
        book.note("received", kind, bytes=size, digest=digest)
        content = act(Site(place))
    except Exception as error:  # whatever it is: in its words there may be values of the data
        log.error("this site cannot %s: %s: %s", kind, type(error).__name__, error)
        raise SiteError(tellable(error, str(context.node_config.get("name")))) from error
    size, digest = messages.measured(content)
    book.note("sent", kind, bytes=size, digest=digest)
    return Message(content, reply_to=message)


def tellable(error: Exception, site: str) -> str:
    """What the server gets to know of an error: its kind, and the module if one is missing."""
    if isinstance(error.__cause__, ModuleNotFoundError):
        fix = "install it there, beside fedskip, as it is on the server"
        return f"the module {error.__cause__.name} is not installed at {site}: {fix}"
    return f"{type(error).__name__}; the site's log says more"


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    def act(site: Site) -> RecordDict:
        train, test = site.halves
        return messages.hello(site.place.name, len(train), len(test))

    return answered(message, context, act)


@app.train()
def train(message: Message, context: Context) -> Message:
    def act(site: Site) -> RecordDict:
        orders, visit = messages.read_train_order(message.content)
        work = Work.parse(str(visit.pop("work", "")))
        return messages.train_reply(site.visit(orders, work, **visit), private=work.privacy is not None)

    return answered(message, context, act)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    def act(site: Site) -> RecordDict:
        x, visit = messages.read_score_order(message.content)
        work = Work.parse(str(visit.get("work", "")))
        return messages.score_reply(site.score(x, work, str(visit.get("layout", ""))))

    return answered(message, context, act)
