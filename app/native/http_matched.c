/* The type `Matched`: a request that was recognised, until it is answered. */
#include "http_patterns.h"

#include <string.h>

#include "structmember.h"

/* Bytes of a tensor that are copied out of the request, which larger ones keep; and of a response that is joined. */
enum { SMALL_TENSOR = 4 << 10, MAX_BODY = 16 << 10 };
enum { MAX_PIECES = 2 * MAX_OUTPUTS + 3, DIGITS = 20 };

struct span {
    const char *start, *end;
};

/* Return the end of an id: of printable ASCII, nothing escaped; NULL for another. */
static const char *end_of_id(const char *at, const char *end)
{
    const char *start = at;
    while (at < end && *at >= ' ' && *at <= '~' && *at != '"' && *at != '\\')
        at++;
    return at > start && at < end && *at == '"' ? at : NULL;
}

static const char *end_of_string(const char *at, const char *end)
{
    for (; at < end; at++) {
        if (*at == '"')
            return at + 1;
        if (*at == '\\')
            at++;
    }
    return NULL;
}

/* Return the end of an array, if it is one; NULL if it cannot be. */
static const char *end_of_array(const char *at, const char *end)
{
    int depth = 0;
    while (at != NULL && at < end) {
        char next = *at++;
        if (next == '"')
            at = end_of_string(at, end);
        else if (next == '[')
            depth++;
        else if (next == ']')
            depth--;
        if (depth == 0 || next == '{')
            return next == ']' ? at : NULL;
    }
    return NULL;
}

/* Find what is in the holes of a request; return whether all around them is as in the sample. */
static int find_spans(const Pattern *self, const char *data, struct span *spans)
{
    const char *sample = PyBytes_AS_STRING(self->sample), *at = data;
    const char *end = data + PyBytes_GET_SIZE(self->sample); /* of the JSON: the head, with its lengths, is the same */
    Py_ssize_t known = 0;
    for (Py_ssize_t i = 0; i < self->holes; i++) {
        const struct hole *hole = &self->hole[i];
        Py_ssize_t size = hole->start - known;
        if (size > end - at || memcmp(at, sample + known, (size_t)size) != 0)
            return 0;
        at += size;
        spans[i].start = at;
        at = hole->input < 0 ? end_of_id(at, end) : end_of_array(at, end);
        if (at == NULL)
            return 0;
        spans[i].end = at;
        known = hole->end;
    }
    Py_ssize_t size = PyBytes_GET_SIZE(self->sample) - known;
    return size == end - at && memcmp(at, sample + known, (size_t)size) == 0;
}

static PyObject *bytes_of(struct span span)
{
    return PyBytes_FromStringAndSize(span.start, span.end - span.start);
}

/* Return the data of a tensor that was given in the JSON. */
static PyObject *read_tensor(const struct input *input, struct span span)
{
    PyObject *text = bytes_of(span);
    PyObject *found = text == NULL ? NULL : PyObject_CallOneArg(input->source, text);
    Py_XDECREF(text);
    if (found != NULL && !PyBytes_CheckExact(found)) {
        PyErr_SetString(PyExc_TypeError, "a tensor's data is bytes");
        Py_CLEAR(found);
    }
    return found;
}

/* Return the data of a tensor that is behind the JSON. */
static PyObject *slice(PyObject *data, Py_ssize_t start, Py_ssize_t end)
{
    if (end - start <= SMALL_TENSOR)
        return PyBytes_FromStringAndSize(PyBytes_AS_STRING(data) + start, end - start);
    PyObject *view = PyMemoryView_FromObject(data);
    PyObject *found = view == NULL ? NULL : PySequence_GetSlice(view, start, end);
    Py_XDECREF(view);
    return found;
}

/* Fill in the data of each tensor, and the id; return whether there is everything. The caller releases it. */
static int read_values(const Pattern *self, PyObject *data, const struct span *spans, PyObject **values, PyObject **id)
{
    for (Py_ssize_t i = 0; i < self->holes; i++) {
        Py_ssize_t input = self->hole[i].input;
        PyObject **value = input < 0 ? id : &values[input];
        *value = input < 0 ? PyUnicode_DecodeASCII(spans[i].start, spans[i].end - spans[i].start, NULL)
                           : read_tensor(&self->input[input], spans[i]);
        if (*value == NULL)
            return 0;
    }
    Py_ssize_t json_end = PyBytes_GET_SIZE(self->sample);
    for (Py_ssize_t i = 0; i < self->inputs; i++) {
        const struct input *input = &self->input[i];
        if (input->source == Py_None)
            values[i] = slice(data, json_end + input->start, json_end + input->end);
        else if (values[i] == NULL)
            values[i] = Py_NewRef(input->source);
        if (values[i] == NULL)
            return 0;
    }
    if (*id == NULL)
        *id = Py_NewRef(PyTuple_GET_ITEM(self->fields, 3));
    return 1;
}

/* Return a request with these values. */
static PyObject *make_request(const Patterns *patterns, const Pattern *self, PyObject **values, PyObject *id)
{
    PyObject *inputs = PyTuple_New(self->inputs);
    for (Py_ssize_t i = 0; inputs != NULL && i < self->inputs; i++) {
        const struct input *input = &self->input[i];
        PyObject *fields[TENSOR_FIELDS] = {input->name, input->datatype, input->shape, values[i]};
        PyObject *tensor = PyObject_Vectorcall((PyObject *)patterns->tensor, fields, TENSOR_FIELDS, NULL);
        if (tensor == NULL)
            Py_CLEAR(inputs);
        else
            PyTuple_SET_ITEM(inputs, i, tensor);
    }
    if (inputs == NULL)
        return NULL;
    PyObject **given = &PyTuple_GET_ITEM(self->fields, 0);
    PyObject *fields[] = {given[0], given[1], inputs, given[2], id, given[4]};
    PyObject *request = PyObject_Vectorcall((PyObject *)patterns->request, fields, 6, NULL);
    Py_DECREF(inputs);
    return request;
}

static Matched *make_matched(Patterns *patterns, Pattern *pattern, PyObject *connection, PyObject *request, PyObject *id);

Matched *match_pattern(Patterns *patterns, Pattern *pattern, PyObject *data, PyObject *connection)
{
    struct span spans[MAX_HOLES];
    PyObject *values[MAX_INPUTS] = {NULL}, *id = NULL, *request = NULL;
    Matched *matched = NULL;
    if (!find_spans(pattern, PyBytes_AS_STRING(data), spans))
        return NULL;
    if (read_values(pattern, data, spans, values, &id))
        request = make_request(patterns, pattern, values, id);
    if (request != NULL)
        matched = make_matched(patterns, pattern, connection, request, id);
    for (Py_ssize_t i = 0; i < MAX_INPUTS; i++)
        Py_XDECREF(values[i]);
    Py_XDECREF(id);
    Py_XDECREF(request);
    return matched;
}

static inline PyObject *field(PyObject *object, Py_ssize_t offset)
{
    return *(PyObject **)((char *)object + offset);
}

static int equal(PyObject *one, PyObject *other)
{
    int same = one == other || (one != NULL ? PyObject_RichCompareBool(one, other, Py_EQ) : 0);
    if (same < 0)
        PyErr_Clear();
    return same > 0;
}

/* Return the size of a tensor's data in bytes, if it is a buffer of them; else -1. */
static Py_ssize_t size_of(PyObject *data)
{
    if (data != NULL && (PyBytes_CheckExact(data) || PyByteArray_CheckExact(data)))
        return Py_SIZE(data);
    if (data == NULL || !PyMemoryView_Check(data))
        return -1;
    const Py_buffer *view = PyMemoryView_GET_BUFFER(data);
    return view->itemsize == 1 && view->ndim == 1 && PyBuffer_IsContiguous(view, 'C') ? view->len : -1;
}

/* Whether an output is as (name, datatype, shape, bytes) says; its size is -1 if its data is in the JSON. */
static int is_output(const Patterns *patterns, PyObject *tensor, PyObject *expected)
{
    Py_ssize_t nbytes = PyLong_AsSsize_t(PyTuple_GET_ITEM(expected, 3));
    return Py_IS_TYPE(tensor, patterns->tensor) &&
           equal(field(tensor, patterns->of_tensor[NAME]), PyTuple_GET_ITEM(expected, 0)) &&
           equal(field(tensor, patterns->of_tensor[DATATYPE]), PyTuple_GET_ITEM(expected, 1)) &&
           equal(field(tensor, patterns->of_tensor[SHAPE]), PyTuple_GET_ITEM(expected, 2)) &&
           (nbytes < 0 || nbytes == size_of(field(tensor, patterns->of_tensor[DATA])));
}

/* Whether a response has all that an answer, as `add_answer` checks it, says of one. */
static int is_response(const Matched *self, PyObject *response, PyObject *answer)
{
    const Patterns *patterns = self->patterns;
    PyObject *outputs = field(response, patterns->of_response[OUTPUTS]), *expected = PyTuple_GET_ITEM(answer, 2);
    Py_ssize_t count = PyTuple_GET_SIZE(expected);
    if (outputs == NULL || !PyTuple_CheckExact(outputs) || PyTuple_GET_SIZE(outputs) != count ||
        !equal(field(response, patterns->of_response[MODEL_NAME]), PyTuple_GET_ITEM(answer, 0)) ||
        !equal(field(response, patterns->of_response[MODEL_VERSION]), PyTuple_GET_ITEM(answer, 1)))
        return 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!is_output(patterns, PyTuple_GET_ITEM(outputs, i), PyTuple_GET_ITEM(expected, i)))
            return 0;
    }
    return 1;
}

/* Whether a response is the only one of its request, succeeded, and has no parameters and no id of its own. */
static int is_plain(const Matched *self, PyObject *response)
{
    const Patterns *patterns = self->patterns;
    if (!Py_IS_TYPE(response, patterns->response))
        return 0;
    PyObject *parameters = field(response, patterns->of_response[PARAMETERS]);
    PyObject *id = field(response, patterns->of_response[ID]);
    return field(response, patterns->of_response[FINAL]) == Py_True &&
           field(response, patterns->of_response[FAILURE]) == Py_None && parameters != NULL &&
           PyDict_CheckExact(parameters) && PyDict_GET_SIZE(parameters) == 0 && id != NULL &&
           PyUnicode_CheckExact(id) && (PyUnicode_GET_LENGTH(id) == 0 || equal(id, self->id));
}

/* A response on its way: the parts of its JSON, and its binary tensors. */
struct body {
    Py_ssize_t pieces, binaries, json_size, size;
    struct span piece[MAX_PIECES];
    PyObject *made[MAX_PIECES];
    Py_buffer binary[MAX_OUTPUTS];
};

/* Fill in a piece of the JSON: bytes, or the number of a tensor that is given there, or -1 for the id. */
static int add_piece(const Matched *self, struct body *body, PyObject *piece, PyObject *outputs)
{
    Py_ssize_t size, place = body->pieces++;
    if (PyBytes_CheckExact(piece)) {
        body->made[place] = Py_NewRef(piece);
    } else if (PyLong_AsSsize_t(piece) < 0) {
        const char *text = PyUnicode_AsUTF8AndSize(self->id, &size);
        body->made[place] = text == NULL ? NULL : PyBytes_FromStringAndSize(text, size);
    } else {
        PyObject *tensor = PyTuple_GET_ITEM(outputs, PyLong_AsSsize_t(piece));
        body->made[place] = PyObject_CallOneArg(self->patterns->encode_data, tensor);
    }
    PyObject *made = body->made[place];
    if (made == NULL || !PyBytes_CheckExact(made))
        return 0;
    body->piece[place] = (struct span){PyBytes_AS_STRING(made), PyBytes_AS_STRING(made) + PyBytes_GET_SIZE(made)};
    body->json_size += PyBytes_GET_SIZE(made);
    return 1;
}

static int fill_body(const Matched *self, struct body *body, PyObject *answer, PyObject *outputs)
{
    PyObject *pieces = PyTuple_GET_ITEM(answer, 4), *expected = PyTuple_GET_ITEM(answer, 2);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(pieces); i++) {
        if (!add_piece(self, body, PyTuple_GET_ITEM(pieces, i), outputs))
            return 0;
    }
    body->size = body->json_size;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(expected); i++) {
        if (PyLong_AsSsize_t(PyTuple_GET_ITEM(PyTuple_GET_ITEM(expected, i), 3)) < 0)
            continue;
        PyObject *data = field(PyTuple_GET_ITEM(outputs, i), self->patterns->of_tensor[DATA]);
        if (PyObject_GetBuffer(data, &body->binary[body->binaries], PyBUF_SIMPLE) < 0)
            return 0;
        body->size += body->binary[body->binaries++].len;
    }
    return body->size <= MAX_BODY;
}

static void release_body(struct body *body)
{
    for (Py_ssize_t i = 0; i < body->pieces; i++)
        Py_XDECREF(body->made[i]);
    for (Py_ssize_t i = 0; i < body->binaries; i++)
        PyBuffer_Release(&body->binary[i]);
}

static struct span decimal(Py_ssize_t number, char *digits)
{
    char *at = digits + DIGITS;
    do
        *--at = (char)('0' + number % 10);
    while (number /= 10);
    return (struct span){at, digits + DIGITS};
}

/* Return the parts of a response's head, at most 5: what Python wrote, around the lengths of the JSON, where it has
three parts, and of the body. */
static Py_ssize_t make_head(PyObject *heads, const struct body *body, struct span *parts, char (*digits)[DIGITS])
{
    Py_ssize_t count = PyTuple_GET_SIZE(heads), place = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *head = PyTuple_GET_ITEM(heads, i);
        parts[place++] = (struct span){PyBytes_AS_STRING(head), PyBytes_AS_STRING(head) + PyBytes_GET_SIZE(head)};
        if (i + 1 < count)
            parts[place++] = decimal(i + 2 < count ? body->json_size : body->size, digits[i]);
    }
    return place;
}

static char *put(char *to, const struct span *parts, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        size_t size = (size_t)(parts[i].end - parts[i].start);
        memcpy(to, parts[i].start, size);
        to += size;
    }
    return to;
}

static PyObject *join(PyObject *heads, const struct body *body)
{
    char digits[2][DIGITS];
    struct span head[5];
    Py_ssize_t parts = make_head(heads, body, head, digits), size = body->size;
    for (Py_ssize_t i = 0; i < parts; i++)
        size += head[i].end - head[i].start;
    PyObject *joined = PyBytes_FromStringAndSize(NULL, size);
    if (joined == NULL)
        return NULL;
    char *to = put(PyBytes_AS_STRING(joined), head, parts);
    to = put(to, body->piece, body->pieces);
    for (Py_ssize_t i = 0; i < body->binaries; i++) {
        const Py_buffer *view = &body->binary[i];
        to = put(to, &(struct span){view->buf, (const char *)view->buf + view->len}, 1);
    }
    return joined;
}

/* Return the bytes of a response; NULL, perhaps with an error, where Python has to write it. */
static PyObject *write_answer(const Matched *self, PyObject *response)
{
    if (!is_plain(self, response))
        return NULL;
    for (int i = 0; i < ANSWERS; i++) {
        PyObject *answer = self->pattern->answers[i];
        if (answer == NULL || !is_response(self, response, answer))
            continue;
        struct body body;
        body.pieces = body.binaries = body.json_size = 0;
        Py_INCREF(answer); /* what encodes a tensor could replace it */
        PyObject *outputs = Py_NewRef(field(response, self->patterns->of_response[OUTPUTS])), *joined = NULL;
        if (fill_body(self, &body, answer, outputs))
            joined = join(PyTuple_GET_ITEM(answer, 3), &body);
        release_body(&body);
        Py_DECREF(outputs);
        Py_DECREF(answer);
        return joined;
    }
    return NULL;
}

/* Whether all items of a tuple are bytes; in pieces also the number of an output, or -1. */
static int are_bytes(PyObject *tuple, Py_ssize_t outputs)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        PyObject *item = PyTuple_GET_ITEM(tuple, i);
        if (PyBytes_CheckExact(item))
            continue;
        Py_ssize_t number = outputs >= 0 && PyLong_CheckExact(item) ? PyLong_AsSsize_t(item) : outputs;
        int fits = number >= -1 && number < outputs && !PyErr_Occurred();
        PyErr_Clear(); /* the caller has one for all */
        if (!fits)
            return 0;
    }
    return 1;
}

static int is_expected(PyObject *expected)
{
    PyObject *name, *datatype, *shape;
    Py_ssize_t nbytes;
    return PyTuple_Check(expected) &&
           PyArg_ParseTuple(expected, "UUO!n", &name, &datatype, &PyTuple_Type, &shape, &nbytes);
}

/* Write responses like one that Python has written; `Answer` in `app/protocol/http/response_pattern.py` says what it is. */
static PyObject *add_answer(Matched *self, PyObject *answer)
{
    PyObject *name, *version, *outputs, *heads, *pieces;
    if (!PyTuple_Check(answer) || !PyArg_ParseTuple(answer, "UUO!O!O!:add_answer", &name, &version, &PyTuple_Type,
                                                    &outputs, &PyTuple_Type, &heads, &PyTuple_Type, &pieces)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "no answer");
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(outputs);
    if (count > MAX_OUTPUTS)
        Py_RETURN_FALSE;
    int fits = PyTuple_GET_SIZE(pieces) <= MAX_PIECES && PyTuple_GET_SIZE(heads) >= 2 &&
               PyTuple_GET_SIZE(heads) <= 3 && are_bytes(heads, -1) && are_bytes(pieces, count);
    for (Py_ssize_t i = 0; fits && i < count; i++)
        fits = is_expected(PyTuple_GET_ITEM(outputs, i));
    if (!fits) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "no answer");
        return NULL;
    }
    Pattern *pattern = self->pattern;
    Py_XSETREF(pattern->answers[pattern->next_answer], Py_NewRef(answer));
    pattern->next_answer = (pattern->next_answer + 1) % ANSWERS;
    Py_RETURN_TRUE;
}

/* Have the connection send a response, and go on with its next request. */
static PyObject *send(Matched *self, PyObject *bytes)
{
    PyObject *connection = self->connection;
    self->connection = NULL;
    PyObject *done = PyObject_CallMethod(connection, "write", "O", bytes);
    if (done != NULL) {
        Py_DECREF(done);
        done = PyObject_CallMethod(connection, "exchange_done", "O", Py_True);
    }
    Py_DECREF(connection);
    return done;
}

static int keeps_alive(const Matched *self)
{
    PyObject *keeps = PyObject_GetAttrString(self->connection, "keeps_alive");
    Py_XDECREF(keeps);
    return keeps == Py_True;
}

/* Receive a response: as the sink of its request. */
static PyObject *receive(PyObject *callable, PyObject *const *arguments, size_t count, PyObject *names)
{
    Matched *self = (Matched *)callable;
    if (PyVectorcall_NARGS(count) != 1 || names != NULL) {
        PyErr_SetString(PyExc_TypeError, "one response");
        return NULL;
    }
    if (self->sink != NULL)
        return PyObject_CallOneArg(self->sink, arguments[0]);
    if (self->connection == NULL || self->pattern->owner == NULL) {
        Py_CLEAR(self->call);
        Py_RETURN_NONE;
    }
    PyObject *bytes = keeps_alive(self) ? write_answer(self, arguments[0]) : NULL;
    PyObject *result;
    Py_INCREF(self);
    if (bytes != NULL) {
        Py_CLEAR(self->call); /* it has this as its sink */
        result = send(self, bytes);
        Py_DECREF(bytes);
    } else {
        PyErr_Clear(); /* Python writes the response, or finds what is wrong with it */
        result = PyObject_CallMethod(self->pattern->owner, "answer", "OO", self, arguments[0]);
    }
    Py_DECREF(self);
    return result;
}

/* Handle that the client has disconnected. */
static PyObject *disconnect(Matched *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *call = self->call;
    self->call = NULL;
    Py_CLEAR(self->connection);
    if (call == NULL || call == Py_None) {
        Py_XDECREF(call);
        Py_RETURN_NONE;
    }
    PyObject *result = PyObject_CallMethod(call, "cancel", NULL);
    Py_DECREF(call);
    return result;
}

static int traverse(Matched *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->patterns);
    Py_VISIT(self->pattern);
    Py_VISIT(self->connection);
    Py_VISIT(self->request);
    Py_VISIT(self->call);
    Py_VISIT(self->entry);
    Py_VISIT(self->sink);
    return 0;
}

static int clear(Matched *self)
{
    Py_CLEAR(self->connection);
    Py_CLEAR(self->request);
    Py_CLEAR(self->call);
    Py_CLEAR(self->entry);
    Py_CLEAR(self->sink);
    return 0;
}

static void delete(Matched *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear(self);
    Py_XDECREF(self->id);
    Py_XDECREF(self->pattern);
    Py_XDECREF(self->patterns);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *get_owner(Matched *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(self->pattern->owner == NULL ? Py_None : self->pattern->owner);
}

static PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Matched, vectorcall), READONLY, NULL},
    {"connection", T_OBJECT, offsetof(Matched, connection), READONLY, NULL},
    {"request", T_OBJECT, offsetof(Matched, request), READONLY, NULL},
    {"call", T_OBJECT, offsetof(Matched, call), 0, NULL},
    {"entry", T_OBJECT, offsetof(Matched, entry), 0, NULL},
    {"sink", T_OBJECT, offsetof(Matched, sink), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"owner", (getter)get_owner, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef methods[] = {
    {"add_answer", (PyCFunction)add_answer, METH_O, "Write responses like one that Python has written."},
    {"disconnect", (PyCFunction)disconnect, METH_NOARGS, "Handle that the client has disconnected."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_dealloc, delete},
    {Py_tp_members, members},
    {Py_tp_getset, properties},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec matched_specification = {
    .name = "app.native.extension.Matched",
    .basicsize = sizeof(Matched),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slots,
};

static Matched *make_matched(Patterns *patterns, Pattern *pattern, PyObject *connection, PyObject *request, PyObject *id)
{
    Matched *self = (Matched *)patterns->matched->tp_alloc(patterns->matched, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = receive;
    self->patterns = (Patterns *)Py_NewRef(patterns);
    self->pattern = (Pattern *)Py_NewRef(pattern);
    self->connection = Py_NewRef(connection);
    self->request = Py_NewRef(request);
    self->id = Py_NewRef(id);
    return self;
}
