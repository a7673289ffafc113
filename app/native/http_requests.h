/* Inference requests over HTTP/1.1, read in full: those in one piece, of a head that Python has read before but for the
headers that change nothing about how a request is read, and with a JSON part as most clients write it. Python reads all
others, and is the judge of what is wrong with them: nothing here changes anything before it has read a request whole. */
#pragma once

#include "json_requests.h"
#include "slot_names.h"

enum { MAX_HEAD = 8 << 10, MAX_KEY = 1 << 10, MAX_HEADS = 4096, MAX_KEPT = 4 << 20, MAX_JSON = 32 << 10 };

struct head {
    Py_ssize_t size, content_length, json_length; /* -1: there is none */
    size_t key_size;
    char key[MAX_KEY]; /* the request line, and the headers that requests are told apart by */
};

/* Read a head; 0 where it is not whole, or not plain. `others` are further headers to tell requests apart by. */
int read_head(const char *data, Py_ssize_t size, PyObject *others, struct head *head);

typedef struct {
    PyObject_HEAD
    PyTypeObject *matched, *tensor, *output, *response;
    Py_ssize_t of_tensor[T_SLOTS], of_output[W_SLOTS], of_request[Q_SLOTS], of_response[A_SLOTS];
    PyObject *given, *json, *heads; /* the arguments; types of `read_json`; the owner, model and version of each known head */
    PyObject *others, *response_heads, *encode_data;
    unsigned long long max_size; /* of a tensor in the JSON */
    Py_ssize_t max_head, max_body, kept; /* `kept`: bytes of the known heads, which their owners have */
} HttpRequests;

/* A request until it is answered: its exchange, and the sink of its responses. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    HttpRequests *requests;
    PyObject *owner, *connection, *request, *call, *entry, *sink;
    struct wishes wishes;
} Matched;

extern PyType_Spec matched_specification;

static inline PyObject *slot(PyObject *object, Py_ssize_t offset)
{
    return *(PyObject **)((char *)object + offset);
}

Matched *make_matched(HttpRequests *requests, PyObject *owner, PyObject *connection, PyObject *request,
                      struct wishes wishes);

/* Return the bytes of a response; NULL, perhaps with an error, where Python has to write it. */
PyObject *write_http_response(const Matched *self, PyObject *response);
