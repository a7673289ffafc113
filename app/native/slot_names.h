/* Made by `python -m app.native.slots`. */
#pragma once

/* What is behind the id of a request whose `regions` or `chain` is set, and before these: the defaults. */
#define DEFAULTS "\x80\x00\xc2\xc2\x00\x00\xa0"
enum { PLAIN_FIELDS = 5, ALL_FIELDS = 15 };

/* Of each class: the places of its slots in what `find_slots` finds, and their names. */
enum { MOST_SLOTS = 16 };

/* app.core.tensors:Tensor */
enum { T_NAME, T_DATATYPE, T_SHAPE, T_DATA, T_SLOTS };
#define T_NAMES (const char *const[]){"name", "datatype", "shape", "data", NULL}

/* app.core.tensors:RequestedOutput */
enum { W_NAME, W_REGION, W_CLASSIFICATION, W_BINARY, W_SLOTS };
#define W_NAMES (const char *const[]){"name", "region", "classification", "binary", NULL}

/* app.core.tensors:InferRequest */
enum { Q_MODEL_NAME, Q_MODEL_VERSION, Q_INPUTS, Q_OUTPUTS, Q_ID, Q_REGIONS, Q_CHAIN, Q_DEADLINE, Q_TRACE, Q_SLOTS };
#define Q_NAMES (const char *const[]){"model_name", "model_version", "inputs", "outputs", "id", "regions", "chain", \
    "deadline", "trace", NULL}

/* app.core.tensors:InferResponse */
enum { A_MODEL_NAME, A_MODEL_VERSION, A_OUTPUTS, A_ID, A_PARAMETERS, A_FINAL, A_FAILURE, A_SLOTS };
#define A_NAMES (const char *const[]){"model_name", "model_version", "outputs", "id", "parameters", "final", \
    "failure", NULL}

/* app.ingress.http2.connection:Http2Connection */
enum { C_READER, C_BLOCK, C_HEADERS, C_OUTPUT, C_STREAMS, C_LAST_STREAM, C_RECEIVED, C_DRAINING, C_IS_BUFFERED, C_SLOTS
    };
#define C_NAMES (const char *const[]){"_reader", "_block", "_headers", "_output", "_streams", "_last_stream", \
    "_received", "_draining", "_is_buffered", NULL}

/* app.protocol.grpc.http2:FrameReader */
enum { R_REST, R_MISSING, R_LENGTH, R_FLAGS, R_STREAM, R_SLOTS };
#define R_NAMES (const char *const[]){"_rest", "_missing", "_length", "_flags", "_stream", NULL}

/* app.protocol.grpc.framing:MessageReader */
enum { M_COMPLETED, M_BUFFER, M_ALLOCATED, M_FILLED, M_SIZE, M_SLOTS };
#define M_NAMES (const char *const[]){"completed", "_buffer", "_allocated", "_filled", "_size", NULL}

/* app.ingress.http2.stream:Output */
enum { O_FRAMES, O_WINDOW, O_INITIAL_WINDOW, O_FRAME_SIZE, O_WAITING, O_DRAINED, O_KEEPALIVE, O_STREAMS, O_CORKED,
    O_ON_IDLE, O_LOOP, O_SLOTS };
#define O_NAMES (const char *const[]){"frames", "window", "initial_window", "frame_size", "waiting", "drained", \
    "keepalive", "streams", "corked", "on_idle", "_loop", NULL}

/* app.protocol.grpc.http2:Keepalive */
enum { K_SENT, K_HEARD, K_SECOND, K_COUNTS, K_SLOTS };
#define K_NAMES (const char *const[]){"sent", "heard", "_second", "_counts", NULL}

/* app.ingress.http2.stream:Stream */
enum { S_OUTPUT, S_ID, S_RECEIVER, S_WINDOW, S_RECEIVED, S_CREDIT, S_ENDED, S_OVER, S_QUEUE, S_TRAILERS, S_DRAINED,
    S_SLOTS };
#define S_NAMES (const char *const[]){"_output", "id", "receiver", "window", "received", "_credit", "ended", "over", \
    "queue", "trailers", "_drained", NULL}

/* app.ingress.http2.call:UnaryCall */
enum { U_STATE, U_STREAM, U_HEAD, U_READER, U_BUFFERED, U_HEADERS_SENT, U_OVER, U_TIMER, U_DEADLINE, U_HANDLER,
    U_MESSAGE, U_ON_CANCEL, U_SLOTS };
#define U_NAMES (const char *const[]){"_state", "_stream", "_head", "_reader", "_buffered", "_headers_sent", "over", \
    "_timer", "deadline", "_handler", "_message", "on_cancel", NULL}

/* app.transport.channel.client:ChannelCall */
enum { L_CHANNEL, L_STREAM, L_SINK, L_REQUEST_ID, L_BUCKET, L_SLOTS };
#define L_NAMES (const char *const[]){"channel", "_stream", "sink", "request_id", "bucket", NULL}

/* deployments.execution.queued_request:QueuedRequest */
enum { P_INFER, P_ANSWERED, P_DETACHED, P_RESCHEDULED, P_ACTIVITY, P_ACCEPTED, P_FAILED, P_SINK, P_ROWS, P_SHAPES,
    P_CANCELLED, P_ARRIVAL_NS, P_DISPATCH_NS, P_NBYTES, P_COMPUTED, P_RESPONSES, P_SLOTS };
#define P_NAMES (const char *const[]){"infer", "answered", "detached", "rescheduled", "activity", "accepted", \
    "failed", "sink", "rows", "shapes", "cancelled", "arrival_ns", "dispatch_ns", "nbytes", "computed", "_responses", \
    NULL}
