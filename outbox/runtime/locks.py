"""The locks of a harvester and of consumers, what each guards, outermost first; and its threads.

A thread that holds a lock takes only locks that come later in this list, so no two threads ever wait for each other.
While one of `LEAVES` is held nothing is waited for but another of them, nothing is logged and no connection, client or
receiver is called: every thread of the process may need such a lock at any moment.
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
    "database identity": "which database the first connection has found; state row and tables, as the last one has",
    "ledger client": "the consumer that reads the ledger",
    "lane's host": "whether the end of a leadership was announced, and whether it is over",
    "consumer": "the partitions that a consumer has in this process, and what was fetched of them",
    "upload": "what each store of an append has to do, and what it has reported",
    "graph": "the lanes that a processor of a graph has in this process, and what was fetched for them",
    "relay": "the deliveries that a relay has leased, and what it knows of their destinations",
    "receivers": "events that receivers of signals have not seen yet",
}

LEAVES = frozenset({"round", "lease", "consumer", "graph", "relay"})

THREADS = {
    "outbox-harvester": "starts the election and ends it, and ends the workers that are left",
    "outbox-election-N": "three of them: polls the group (`stand_in_group`), reads heartbeats (`read_heartbeats`), "
    "sends them and tells the election the time (`tick`); any of them starts and ends workers, as the election decides",
    "outbox-lane-N": "the worker of lane N: takes it over, sends its batches; owns its producer",
    "outbox-reader": "exactly-once: reads the pages of all lanes, deals them out; owns the connection that reads",
    "outbox-purge": "exactly-once: purges, looks at the state row, repeats the lease; owns a connection",
    "outbox-sweep": "exactly-once: looks at blocks of the table; owns a connection",
    "outbox-ear": "exactly-once: waits for notifications; owns a connection",
    "outbox-mark-N": "at-least-once: takes the lane, marks and resets records of lane N; owns a connection",
    "outbox-purge-N": "at-least-once: purges records of lane N; owns a connection",
    "outbox-consumers": "starts consumers and ends them",
    "outbox-member-N": "consumers: polls the group of consumer N, hands messages to workers, ends a process that hangs",
    "outbox-graph": "starts the processors of a graph and ends them",
    "outbox-graph-member-N": "graphs: polls the group of processor N, hands messages to lanes",
    "outbox-graph-lane-N": "graphs: a lane of processor N: calls its function; owns the lane's producer",
    "outbox-consumer-N-N": "consumers: a worker: calls the function of consumer N; owns a Django connection",
    "outbox-ends-N": "consumers, with `--once`: asks whether all partitions have reached the ends of the start",
    "outbox-topics-N": "consumers: asks whether topics were created again, or hold a position after all",
    "outbox-observer": "consumers: asks Kafka for the last stable offsets, writes what is shown of partitions; owns "
    "connections",
    "outbox-cancel-N": "consumers: cancels a statement before the process ends",
    "outbox-store-N": "journals: sends the blocks of an append to store N, and reads them again",
    "outbox-relay-lease": "relay: leases deliveries, changes destinations; owns a connection",
    "outbox-relay-send": "relay: begins attempts and takes their results; owns the HTTP client",
    "outbox-relay-settle": "relay: writes results; owns a connection",
    "outbox-journal": "the keeper of journals; owns a connection",
    "outbox-events": "runs the receivers of signals",
    "outbox-metrics": "answers requests for metrics and probes",
    "outbox-samples": "writes a sample of the table each minute, where lane 0 is owned",
    "outbox-disposal": "ends a client that is done with: that may take a while",
    "outbox-nudge": "hands a message to clients that wait by a clock that was set back",
    "outbox-brokers": "asks the brokers a question at the start, for as long as that takes",
    "outbox-collector": "collects garbage while no lane is at work",
}
"""What each does, and what it owns. N is the number of a lane, or the name of what the thread does."""
