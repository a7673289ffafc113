/* Inference requests over HTTP/1 that look like an earlier one, recognised without being parsed.

A pattern is the bytes of a request that Python has read, head and JSON, with holes: the places of its id and of
tensors given in the JSON. A request with the same bytes around its holes is the same request but for what is in them;
its response has the bytes of an earlier response, but for what its outputs hold. Nothing here knows HTTP, or JSON but
for where a string or an array ends: `app/protocol/http/request_pattern.py` finds the holes, and Python reads whatever
is not recognised. */
#include "module.h"

#include <stdint.h>

enum { MAX_INPUTS = 8, MAX_HOLES = MAX_INPUTS + 1, MAX_OUTPUTS = 8, ANSWERS = 4 };

/* What changes from one request to the next: bytes of the sample, and the input they are for; -1 for the id. */
struct hole {
    Py_ssize_t start, end, input;
};

/* A tensor: the bytes from `start` to `end` behind the JSON, or else what `source` is or reads. References are
borrowed from `Pattern.given`. */
struct input {
    PyObject *name, *datatype, *shape, *source;
    Py_ssize_t start, end;
};

typedef struct {
    PyObject_HEAD
    uint64_t key;
    Py_ssize_t total, holes, inputs;
    struct hole hole[MAX_HOLES];
    struct input input[MAX_INPUTS];
    PyObject *sample; /* head and JSON */
    PyObject *given;  /* the inputs */
    PyObject *fields; /* of the request: model, version, outputs, id, parameters, regions */
    PyObject *owner;
    PyObject *answers[ANSWERS];
    int next_answer;
} Pattern;

enum { SETS = 128, WAYS = 4, SEEN = 1024 };

/* The patterns of one server, by what requests begin with and by their length. */
typedef struct {
    PyObject_HEAD
    PyTypeObject *tensor, *request, *response, *pattern, *matched;
    Py_ssize_t of_tensor[T_SLOTS], of_response[A_SLOTS];
    PyObject *encode_data;
    PyObject *names; /* of the keyword by which a request is made */
    Pattern *ways[SETS][WAYS];
    unsigned char next_way[SETS];
    uint64_t seen[SEEN];
    unsigned char learned[SEEN];
} Patterns;

/* A request that was recognised, until it is answered: its exchange, and the sink of its responses. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Patterns *patterns;
    Pattern *pattern;
    PyObject *connection, *request, *id, *call, *entry, *sink;
} Matched;

extern PyType_Spec matched_specification;

struct span {
    const char *start, *end;
};

Matched *make_matched(Patterns *patterns, Pattern *pattern, PyObject *connection, PyObject *request, PyObject *id);

/* Return the request that these bytes are, if the pattern fits; NULL, perhaps with an error, if not. */
Matched *match_pattern(Patterns *patterns, Pattern *pattern, PyObject *data, PyObject *connection);

/* Return the bytes of a response; NULL, perhaps with an error, where Python has to write it. */
PyObject *write_answer(const Matched *self, PyObject *response);

/* Write responses like one that Python has written; `Answer` in `app/protocol/http/response_pattern.py` says what it is. */
PyObject *add_answer(Matched *self, PyObject *answer);
