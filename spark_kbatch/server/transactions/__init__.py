"""The transaction coordinator: transactions of Kafka's clients, from their producer's start to their markers.

    requests       what clients ask, and what they are answered
    coordinator    the states of all transactional ids, their time-outs, and what follows a decision

What a request makes of a state, and the log that keeps it, are in `cluster/transactions`, because they are
used where no server runs, too. It is version 0 of Kafka's `transaction.version`: clients name the partitions of a
transaction before they write there, and a producer keeps its epoch from one transaction to the next. What
later versions are for, that no late batch gets into a transaction that it is not of, holds all the same: see
`TransactionCoordinator.ensure_in_transaction`.

No request waits for the lock of a commit, nor for that of a partition.
"""
