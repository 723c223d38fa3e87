"""Transactions of Kafka's clients: what is open, what is decided, and how it is ended in the partitions.

state      one transactional id's transaction and its transitions: no I/O, no clock
records    the log's keys and values, in Kafka's format of `__transaction_state`
log        `__client_transactions`, the log: loading, appending, rewriting
checking   what the partitions have open, beside what the log says
ending     what follows a decision: offsets, markers, the last record; transactions of a server that is gone
administration    what is shown, aborted and decided; what readers do about a transaction that no server ends

A transaction's decision is one record. What is before it aborts if a time-out passes, and what is after it is
done again by whoever loads the log:

    the log's last record     after a crash of the server
    Empty, Complete...        nothing is open
    Ongoing                   the transaction goes on; its time-out starts again
    PrepareCommit             offsets are stored and COMMIT markers appended, again where that was done
    PrepareAbort              ABORT markers are appended, likewise

This log is not `__transaction_state`, which has the jobs' commits and their lock: no commit of a job waits for a
client, nor a client for a commit in other partitions. Only the holder of the server's lock writes it.

Source: Kafka transaction-coordinator/.../TransactionMetadata.java, TransactionCoordinator.scala.
"""
