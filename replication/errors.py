"""Kafka's error codes, and the one table of which exception becomes which code.

A partition's failure is data in a response: handlers turn an exception into its code with `code_of`, and a client turns
it back with `error_of`. `ProtocolError` has no code: the peer broke the protocol, and its connection is closed.
"""

from __future__ import annotations

import enum
import errno
from typing import Any

from logstore import errors


class ErrorCode(enum.IntEnum):
    """The errors that brokers answer with here. Names and numbers are Kafka's."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INVALID_UPDATE_VERSION = 95
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    SHARE_SESSION_LIMIT_REACHED = 133

    @property
    def is_retriable(self) -> bool:
        """May the same request succeed later, or elsewhere?"""
        return self in _RETRIABLE


NONE = ErrorCode.NONE  # where it counts: a member of an enumeration takes time to look up

_RETRIABLE = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    }
)


class ProtocolError(errors.PylogError):
    """The peer broke the protocol: close its connection."""


class UninformedError(errors.PylogError):
    """This broker cannot answer yet: close the connection, and its client asks another one."""


class UnsupportedVersionError(errors.PylogError):
    """The other broker is older, or newer, than what is spoken here."""


class TooManyItemsError(ProtocolError):
    """A message has more items in its arrays than it may have."""


class KafkaError(errors.PylogError):
    """A failure with a Kafka code: raised by handlers, and by clients that were answered with one.

    `message` says what is wrong, without the code.
    """

    code: ErrorCode
    message: str

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        self.message = message
        words = code.name.lower().replace("_", " ")
        super().__init__(f"{words} ({code.value}){': ' if message else ''}{message}", code=code)


class InvalidRecordsError(KafkaError):
    """Records for which a whole batch is refused; `rows` are counted within the batch."""

    rows: tuple[int, ...]

    def __init__(self, code: ErrorCode, rows: tuple[int, ...], message: str) -> None:
        self.rows = rows
        super().__init__(code, message)


# The first line that fits counts: special ones stand before general ones.
_CODES: tuple[tuple[type[Exception], ErrorCode], ...] = (
    (errors.InvalidConfigError, ErrorCode.INVALID_CONFIG),
    (errors.InvalidTopicError, ErrorCode.INVALID_TOPIC_EXCEPTION),
    (errors.TopicExistsError, ErrorCode.TOPIC_ALREADY_EXISTS),
    (errors.UnknownTopicError, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (errors.UnknownPartitionError, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (errors.RecordTooLargeError, ErrorCode.MESSAGE_TOO_LARGE),
    (errors.DamagedBatchError, ErrorCode.CORRUPT_MESSAGE),
    (errors.InvalidTimestampError, ErrorCode.INVALID_TIMESTAMP),
    (errors.InvalidRecordError, ErrorCode.INVALID_RECORD),
    (errors.OffsetOutOfRangeError, ErrorCode.OFFSET_OUT_OF_RANGE),
    (errors.OutOfOrderSequenceError, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (errors.UnknownProducerError, ErrorCode.UNKNOWN_PRODUCER_ID),
    (errors.CoordinatorFencedError, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
    (errors.ProducerFencedError, ErrorCode.INVALID_PRODUCER_EPOCH),
    (errors.TransactionRepeatError, ErrorCode.TRANSACTION_ABORTABLE),
    (errors.TransactionStateError, ErrorCode.INVALID_TXN_STATE),
    (errors.TransactionAbortedError, ErrorCode.TRANSACTION_ABORTABLE),
    (errors.BatchConflictError, ErrorCode.INVALID_REQUEST),
    (errors.ReadOnlyStoreError, ErrorCode.KAFKA_STORAGE_ERROR),
    (errors.InvalidRequestError, ErrorCode.INVALID_REQUEST),
    (errors.StaleLogError, ErrorCode.NOT_LEADER_OR_FOLLOWER),  # the topic is gone or another one: look again
    (errors.CorruptLogError, ErrorCode.KAFKA_STORAGE_ERROR),
    (errors.StorageError, ErrorCode.KAFKA_STORAGE_ERROR),
    (errors.StoreError, ErrorCode.KAFKA_STORAGE_ERROR),
    (TimeoutError, ErrorCode.REQUEST_TIMED_OUT),
    (OSError, ErrorCode.KAFKA_STORAGE_ERROR),
)


# The error of an append to an internal topic -> the one that makes its clients try again, here or elsewhere.
ERRORS_OF_APPENDS = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def code_of(error: Exception) -> ErrorCode:
    """Return the code for `error`; UNKNOWN_SERVER_ERROR for an unexpected one."""
    if isinstance(error, KafkaError):
        return error.code
    return next((code for kind, code in _CODES if isinstance(error, kind)), ErrorCode.UNKNOWN_SERVER_ERROR)


# The device is gone, or no longer takes writes. A full disk is none of these.
_DEAD = frozenset({errno.EIO, errno.EROFS, errno.ENODEV, errno.ENXIO})


def is_disk_dead(error: BaseException) -> bool:
    """Does the error of a write show that the disk can no longer be trusted?"""
    cause = error.__cause__
    is_gone = isinstance(error, errors.StorageError) and isinstance(cause, OSError) and cause.errno in _DEAD
    return is_gone or isinstance(error, errors.FailedStoreError)


def message_of(error: Exception) -> str:
    """The message of an answer, beside the code of an error."""
    return error.message if isinstance(error, KafkaError) and error.message else str(error)


def error_of(code: int, message: str = "") -> KafkaError:
    """The exception for a code that a broker answered with; one that is not known here is a server's error."""
    try:
        known = ErrorCode(code)
    except ValueError:
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"error code {int(code)}; {message}")
    return KafkaError(known, message)


def code_in(answer: Any) -> ErrorCode:
    """The code of an answer, or of a row of it; one that is not known here is a server's error."""
    return error_of(answer.error_code).code


def raise_for_code(answer: Any, message: str) -> None:
    """Raises: KafkaError: the answer, or this row of it, has a code."""
    if answer.error_code:
        raise error_of(answer.error_code, message)
