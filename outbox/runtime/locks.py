"""The locks of a harvester: what each guards, outermost first.

A thread that holds a lock takes only locks that come later in this list, so no two threads ever wait for each other.
While one of `LEAVES` is held nothing is waited for but another of them, nothing is logged and no connection, client or
receiver is called: every thread of the harvester may need such a lock at any moment.
"""

LOCKS = {
    "election": "what the member of the group knows and decides; its listener is called under it",
    "lanes of the process": "which reader the lanes of this process share",
    "careful turn": "which lane of the process sends records that may have crashed it: one at a time",
    "preparing": "that the tables and topics are checked once",
    "state row": "the state row as it was read last: one lane reads it for all that wait",
    "sending turn": "which lane of the process hands records to its client: one at a time",
    "round": "the lanes, the page being sent, what is in flight, the holds",
    "lease": "until when the lease on the table is relied on, when it is repeated, which lanes it shows",
    "database identity": "which database, and which tables, the first connection has found",
    "ledger client": "the consumer that reads the ledger",
    "lane's host": "whether the end of a leadership was announced, and whether it is over",
    "receivers": "events that receivers of signals have not seen yet",
}

LEAVES = frozenset({"round", "lease"})
