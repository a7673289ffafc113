/* Reading ModelInferRequests in full, whatever the order of their fields.

Messages that protobuf or `app/protocol/grpc/request_message.py` would refuse are left to Python, which says what is wrong,
and so are those with typed contents, a classification or unknown fields. Functions return NULL, or 0, for what is left to
it, and with an error. */
#include "calls.h"

#include <string.h>

enum { VIEWED_FROM = 4096, MOST = 64, LONGEST_SEQUENCE_ID = 128 };
enum { VARINT, FIXED64, DELIMITED }; /* types of fields */
enum { MODEL_NAME = 1, MODEL_VERSION, ID, PARAMETERS, INPUTS, OUTPUTS, RAW, OF_REQUEST }; /* fields of each kind of message */
enum { NAME = 1, DATATYPE, SHAPE, INPUT_PARAMETERS, OF_INPUT, OUTPUT_PARAMETERS = 2, OF_OUTPUT, KEY = 1, VALUE, OF_ENTRY };
enum { BOOL_TAG = 0x08, INT64_TAG = 0x10, STRING_TAG = 0x1a, DOUBLE_TAG = 0x21, UINT64_TAG = 0x28 }; /* of a value */

/* What an `InferRequest` is made of. */
enum { OF_NAME, OF_VERSION, OF_INPUTS, OF_OUTPUTS, OF_ID, CUSTOM, BY_POSITION };
enum { SEQUENCE_ID = BY_POSITION, SEQUENCE_START, SEQUENCE_END, PRIORITY, TIMEOUT, REGIONS, DEADLINE, VALUES };

struct span {
    const unsigned char *at, *end;
};

/* All fields of a number, in their order. */
struct spans {
    int count;
    struct span items[MOST];
};

struct value {
    int tag;         /* says what it is */
    uint64_t number; /* or the bits of a double */
    struct span text;
};

struct request {
    PyObject *data;
    const unsigned char *bytes; /* of `data` */
    int used;                   /* raw contents */
    struct spans fields[OF_REQUEST];
    PyObject *values[VALUES];
};

static int read_varint(struct span *from, uint64_t *number)
{
    *number = 0;
    for (int shift = 0; shift < 64 && from->at < from->end; shift += 7) {
        unsigned char byte = *from->at++;
        *number |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return 1;
    }
    return 0;
}

/* Find the fields of a message, all of which are delimited: their numbers are below `end`, and those up to `single` come
once, or not at all. */
static int split(struct span from, struct spans *fields, int single, int end)
{
    for (int i = 0; i < end; i++)
        fields[i].count = 0;
    while (from.at < from.end) {
        int tag = *from.at++, number = tag >> 3;
        uint64_t size;
        if ((tag & 7) != DELIMITED || number == 0 || number >= end || fields[number].count == (number <= single ? 1 : MOST) ||
            !read_varint(&from, &size) || size > (uint64_t)(from.end - from.at))
            return 0;
        fields[number].items[fields[number].count++] = (struct span){from.at, from.at + size};
        from.at += size;
    }
    return 1;
}

/* Return a field that comes once, empty if it does not come. */
static struct span only(const struct spans *fields)
{
    static const unsigned char nothing[1];
    return fields->count ? fields->items[0] : (struct span){nothing, nothing};
}

static PyObject *text_of(struct span span)
{
    return PyUnicode_DecodeUTF8((const char *)span.at, span.end - span.at, NULL);
}

static int is_key(struct span key, const char *word)
{
    size_t size = (size_t)(key.end - key.at);
    return size == strlen(word) && memcmp(key.at, word, size) == 0;
}

/* Read an entry of a map of parameters. */
static int read_parameter(struct span entry, struct span *key, struct value *value)
{
    struct spans fields[OF_ENTRY];
    if (!split(entry, fields, VALUE, OF_ENTRY))
        return 0;
    *key = only(&fields[KEY]);
    struct span from = only(&fields[VALUE]);
    if (from.at == from.end)
        return 0;
    value->tag = *from.at++;
    if (value->tag == DOUBLE_TAG && from.end - from.at == 8) {
        memcpy(&value->number, from.at, 8);
        return 1;
    }
    if (value->tag == DOUBLE_TAG || !read_varint(&from, &value->number))
        return 0;
    value->text = from;
    return value->tag == STRING_TAG ? value->number == (uint64_t)(from.end - from.at) : from.at == from.end;
}

static PyObject *value_of(const struct value *value)
{
    double number;
    memcpy(&number, &value->number, sizeof number);
    return value->tag == BOOL_TAG     ? PyBool_FromLong(value->number != 0)
           : value->tag == INT64_TAG  ? PyLong_FromLongLong((int64_t)value->number)
           : value->tag == UINT64_TAG ? PyLong_FromUnsignedLongLong(value->number)
           : value->tag == STRING_TAG ? text_of(value->text)
           : value->tag == DOUBLE_TAG ? PyFloat_FromDouble(number)
                                      : NULL;
}

/* Return which value of the request a parameter is; -1 if Python has to judge it. */
static int place_of(struct span key, const struct value *value)
{
    int is_int64 = value->tag == INT64_TAG, is_bool = value->tag == BOOL_TAG;
    if (is_key(key, "sequence_id"))
        return is_int64 || (value->tag == STRING_TAG && value->number <= LONGEST_SEQUENCE_ID) ? SEQUENCE_ID : -1;
    if (is_key(key, "sequence_start"))
        return is_bool ? SEQUENCE_START : -1;
    if (is_key(key, "sequence_end"))
        return is_bool ? SEQUENCE_END : -1;
    if (is_key(key, "priority"))
        return value->tag == UINT64_TAG || (is_int64 && (int64_t)value->number >= 0) ? PRIORITY : -1;
    if (is_key(key, "timeout"))
        return is_int64 ? TIMEOUT : -1;
    int is_triton = key.end - key.at >= 7 && memcmp(key.at, "triton_", 7) == 0;
    return is_triton || value->tag == UINT64_TAG ? -1 : CUSTOM;
}

static int add_parameter(struct request *request, struct span entry)
{
    struct span key;
    struct value value;
    int place = read_parameter(entry, &key, &value) ? place_of(key, &value) : -1;
    if (place < 0)
        return 0;
    if (place != CUSTOM && value.tag == INT64_TAG)
        value.tag = UINT64_TAG; /* as which it counts there */
    PyObject *made = value_of(&value), *name = made == NULL || place != CUSTOM ? NULL : text_of(key);
    if (made != NULL && place != CUSTOM)
        Py_XSETREF(request->values[place], Py_NewRef(made));
    int added = made != NULL && (place != CUSTOM || (name != NULL && PyDict_SetItem(request->values[CUSTOM], name, made) == 0));
    Py_XDECREF(name);
    Py_XDECREF(made);
    return added;
}

/* Return where in the memory of the client a tensor is, a new reference: None for nowhere. */
static PyObject *read_place(const UnaryCalls *self, const struct spans *parameters)
{
    struct value region = {0}, offset = {.tag = INT64_TAG}, nbytes = {0}, value;
    struct span key;
    if (parameters->count == 0)
        return Py_NewRef(Py_None);
    for (int i = 0; i < parameters->count; i++) {
        if (!read_parameter(parameters->items[i], &key, &value))
            return NULL;
        if (is_key(key, "shared_memory_region"))
            region = value;
        else if (is_key(key, "shared_memory_offset"))
            offset = value;
        else if (is_key(key, "shared_memory_byte_size"))
            nbytes = value;
        else
            return NULL;
    }
    if (region.tag != STRING_TAG || offset.tag != INT64_TAG || nbytes.tag != INT64_TAG)
        return NULL;
    PyObject *name = text_of(region.text);
    PyObject *made = name == NULL ? NULL
                                  : PyObject_CallFunction((PyObject *)self->types[REGION], "OKK", name,
                                                          (unsigned long long)offset.number, (unsigned long long)nbytes.number);
    Py_XDECREF(name);
    return made;
}

/* Return a raw content: a short one is a copy, a long one a view. */
static PyObject *raw_content(const struct request *request, struct span raw)
{
    Py_ssize_t size = raw.end - raw.at;
    if (size < VIEWED_FROM)
        return PyBytes_FromStringAndSize((const char *)raw.at, size);
    PyObject *view = PyMemoryView_FromObject(request->data);
    PyObject *content = view == NULL ? NULL : PySequence_GetSlice(view, raw.at - request->bytes, raw.end - request->bytes);
    Py_XDECREF(view);
    return content;
}

/* Return the next raw content for an input that has no place of its own. */
static PyObject *next_content(struct request *request)
{
    const struct spans *raw = &request->fields[RAW];
    return request->used == raw->count ? NULL : raw_content(request, raw->items[request->used++]);
}

static PyObject *make_shape(struct span packed)
{
    PyObject *dimensions[MOST], *shape = NULL;
    uint64_t number;
    int rank = 0, is_whole = 1;
    while (is_whole && packed.at < packed.end) {
        is_whole = rank < MOST && read_varint(&packed, &number) && (dimensions[rank] = PyLong_FromLongLong((int64_t)number));
        rank += is_whole;
    }
    if (is_whole)
        shape = PyTuple_New(rank);
    for (int i = 0; i < rank; i++) {
        if (shape != NULL)
            PyTuple_SET_ITEM(shape, i, dimensions[i]);
        else
            Py_DECREF(dimensions[i]);
    }
    return shape;
}

static PyObject *make_input(const UnaryCalls *self, struct request *request, struct span from)
{
    struct spans fields[OF_INPUT];
    PyObject *values[4] = {NULL}, *made = NULL;
    if (!split(from, fields, SHAPE, OF_INPUT) || (values[3] = read_place(self, &fields[INPUT_PARAMETERS])) == NULL)
        return NULL;
    if (values[3] == Py_None)
        Py_SETREF(values[3], next_content(request));
    else
        Py_SETREF(request->values[REGIONS], Py_NewRef(Py_True));
    if (values[3] != NULL && (values[0] = text_of(only(&fields[NAME]))) != NULL &&
        (values[1] = text_of(only(&fields[DATATYPE]))) != NULL && (values[2] = make_shape(only(&fields[SHAPE]))) != NULL)
        made = PyObject_Vectorcall((PyObject *)self->types[TENSOR], values, 4, NULL);
    for (int i = 0; i < 4; i++)
        Py_XDECREF(values[i]);
    return made;
}

static PyObject *make_output(const UnaryCalls *self, struct request *request, struct span from)
{
    struct spans fields[OF_OUTPUT];
    PyObject *place = split(from, fields, NAME, OF_OUTPUT) ? read_place(self, &fields[OUTPUT_PARAMETERS]) : NULL;
    PyObject *name = place == NULL ? NULL : text_of(only(&fields[NAME])), *values[] = {name, place};
    PyObject *made = name == NULL ? NULL : PyObject_Vectorcall((PyObject *)self->types[WANTED], values, 1, self->output_names);
    if (made != NULL && place != Py_None)
        Py_SETREF(request->values[REGIONS], Py_NewRef(Py_True));
    Py_XDECREF(name);
    Py_XDECREF(place);
    return made;
}

Py_ssize_t tensor_offset(const unsigned char *message, Py_ssize_t size)
{
    struct span from = {message, message + size};
    uint64_t length;
    while (from.at < from.end) {
        int is_raw = *from.at++ == (RAW << 3 | DELIMITED);
        if (!read_varint(&from, &length))
            break;
        if (is_raw && length >= VIEWED_FROM)
            return from.at - message;
        if (length > (uint64_t)(from.end - from.at))
            break;
        from.at += length;
    }
    return 0;
}

typedef PyObject *(*maker)(const UnaryCalls *self, struct request *request, struct span from);

static PyObject *make_all(const UnaryCalls *self, struct request *request, const struct spans *spans, maker make)
{
    PyObject *all = PyTuple_New(spans->count);
    for (int i = 0; all != NULL && i < spans->count; i++) {
        PyObject *made = make(self, request, spans->items[i]);
        if (made == NULL)
            Py_CLEAR(all);
        else
            PyTuple_SET_ITEM(all, i, made);
    }
    return all;
}

static int fill(const UnaryCalls *self, struct request *request)
{
    struct spans *fields = request->fields;
    PyObject **values = request->values;
    if ((values[OF_NAME] = text_of(only(&fields[MODEL_NAME]))) == NULL ||
        (values[OF_VERSION] = text_of(only(&fields[MODEL_VERSION]))) == NULL ||
        (values[OF_ID] = text_of(only(&fields[ID]))) == NULL || (values[CUSTOM] = PyDict_New()) == NULL ||
        (values[OF_INPUTS] = make_all(self, request, &fields[INPUTS], make_input)) == NULL ||
        (values[OF_OUTPUTS] = make_all(self, request, &fields[OUTPUTS], make_output)) == NULL)
        return 0;
    for (int i = 0; i < fields[PARAMETERS].count; i++)
        if (!add_parameter(request, fields[PARAMETERS].items[i]))
            return 0;
    return 1;
}

static PyObject *make_request(const UnaryCalls *self, PyObject *data, const Py_buffer *view, PyObject *deadline)
{
    struct request request = {.data = data, .bytes = view->buf};
    struct span whole = {view->buf, (const unsigned char *)view->buf + view->len};
    for (int i = 0; i < VALUES; i++)
        request.values[i] = i < BY_POSITION   ? NULL
                            : i == DEADLINE ? Py_NewRef(deadline)
                                            : Py_NewRef(i == SEQUENCE_START || i == SEQUENCE_END || i == REGIONS ? Py_False : self->zero);
    PyObject *made = split(whole, request.fields, ID, OF_REQUEST) && fill(self, &request)
                         ? PyObject_Vectorcall((PyObject *)self->types[REQUEST], request.values, BY_POSITION, self->request_names)
                         : NULL;
    for (int i = 0; i < VALUES; i++)
        Py_XDECREF(request.values[i]);
    return made;
}

PyObject *read_message(UnaryCalls *self, PyObject *const *arguments, Py_ssize_t count)
{
    Py_buffer view;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "data, deadline");
        return NULL;
    }
    if (PyObject_GetBuffer(arguments[0], &view, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *request = make_request(self, arguments[0], &view, arguments[1]);
    PyBuffer_Release(&view);
    if (request != NULL || (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_MemoryError)))
        return request;
    PyErr_Clear();
    return PyObject_Vectorcall(self->decode_request, arguments, 2, NULL);
}
