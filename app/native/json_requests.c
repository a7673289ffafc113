/* Inference requests over HTTP, whose JSON part is read in full. What is not as most clients write it, or wrong, is left to
Python, which then reads all of it: NULL without an error. */
#include "json_requests.h"

#include "json_parts.h"

#include <string.h>

enum { MAX_ID = 128, COPIED_TO = 4 << 10, UNLOCKED_FROM = 32 << 10 };

enum { TENSOR, OUTPUT, PLACE, REQUEST, INFER, JSON_TYPES };

static PyObject *string(struct text text)
{
    return PyUnicode_DecodeUTF8(text.start, (Py_ssize_t)text.size, NULL);
}

/* What parts of a request are made of; `shape` is that of one input. */
struct parts {
    PyObject *types;
    const struct request *request;
    const struct body *body;
    const uint64_t *shape;
};

static PyObject *tuple_of(Py_ssize_t count, PyObject *(*make)(const struct parts *, Py_ssize_t), const struct parts *parts)
{
    PyObject *made = PyTuple_New(count);
    for (Py_ssize_t i = 0; made != NULL && i < count; i++) {
        PyObject *value = make(parts, i);
        if (value == NULL)
            Py_CLEAR(made);
        else
            PyTuple_SET_ITEM(made, i, value);
    }
    return made;
}

static PyObject *make_size(const struct parts *parts, Py_ssize_t i)
{
    return PyLong_FromUnsignedLongLong(parts->shape[i]);
}

static PyObject *make_place(PyObject *types, const struct place *place)
{
    return PyObject_CallFunction(PyTuple_GET_ITEM(types, PLACE), "s#KK", place->region.start, (Py_ssize_t)place->region.size,
                                 (unsigned long long)place->offset, (unsigned long long)place->nbytes);
}

/* Return the data of an input: what was read, a place, or the bytes behind the JSON, copied where they are few. */
static PyObject *make_data(PyObject *types, const struct input *input, const struct body *body)
{
    if (input->data != NULL)
        return PyBytes_FromStringAndSize(input->data, (Py_ssize_t)input->size);
    if (input->place.is_given)
        return make_place(types, &input->place);
    Py_ssize_t start = body->json_end + input->start, end = body->json_end + input->end;
    if (end - start <= COPIED_TO)
        return PyBytes_FromStringAndSize(body->bytes + start, end - start);
    PyObject *view = PyMemoryView_FromObject(body->object);
    PyObject *data = view == NULL ? NULL : PySequence_GetSlice(view, start, end);
    Py_XDECREF(view);
    return data;
}

static PyObject *make_input(const struct parts *parts, Py_ssize_t i)
{
    const struct input *input = &parts->request->input[i];
    struct parts shape = {.shape = input->shape};
    PyObject *fields[] = {string(input->name), PyUnicode_FromString(datatype_names[input->datatype]),
                          tuple_of(input->dims, make_size, &shape), make_data(parts->types, input, parts->body)};
    PyObject *made = NULL;
    if (fields[0] != NULL && fields[1] != NULL && fields[2] != NULL && fields[3] != NULL)
        made = PyObject_Vectorcall(PyTuple_GET_ITEM(parts->types, TENSOR), fields, 4, NULL);
    for (int j = 0; j < 4; j++)
        Py_XDECREF(fields[j]);
    return made;
}

static PyObject *make_output(const struct parts *parts, Py_ssize_t i)
{
    const struct output *output = &parts->request->output[i];
    int has_place = output->place.is_given;
    return PyObject_CallFunction(PyTuple_GET_ITEM(parts->types, OUTPUT), "s#OKN", output->name.start,
                                 (Py_ssize_t)output->name.size, has_place || output->is_binary ? Py_True : Py_False,
                                 (unsigned long long)output->classification,
                                 has_place ? make_place(parts->types, &output->place) : Py_NewRef(Py_None));
}

static PyObject *make_value(const struct parameter *parameter)
{
    const struct number *number = &parameter->number;
    double value;
    if (parameter->kind == TEXT)
        return string(parameter->text);
    if (parameter->kind == FLAG)
        return PyBool_FromLong(parameter->flag);
    if (parameter->kind == REAL)
        return to_double(number, &value) ? PyFloat_FromDouble(value) : NULL;
    if (number->is_rounded || number->digits > INT64_MAX || (number->negative && number->digits == 0))
        return NULL;
    return PyLong_FromLongLong(number->negative ? -(long long)number->digits : (long long)number->digits);
}

/* Return which reserved parameter this is: its field, NULL for none; `fits` tells whether its value has the type. */
static const char *reserved_field(const struct parameter *parameter, int *fits)
{
    static const struct {
        const char *key, *field;
        enum value_kind kind;
    } rows[] = {{"sequence_id", "sequence_id", WHOLE},     {"sequence_start", "sequence_start", FLAG},
                {"sequence_end", "sequence_end", FLAG},    {"priority", "priority", WHOLE},
                {"timeout", "timeout_us", WHOLE},          {"binary_data_output", "", FLAG}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!is_text(parameter->key, rows[i].key))
            continue;
        *fits = parameter->kind == rows[i].kind && !parameter->number.negative;
        if (i == 0 && parameter->kind == TEXT)
            *fits = parameter->text.size <= MAX_ID;
        return rows[i].field;
    }
    return NULL;
}

/* Sort parameters into custom ones and fields of a request. Returns whether all are as they have to be. */
static int make_parameters(const struct request *request, PyObject *custom, PyObject *fields, char *binary_default)
{
    for (Py_ssize_t i = 0; i < request->parameters; i++) {
        const struct parameter *parameter = &request->parameter[i];
        int fits = parameter->key.size < 7 || memcmp(parameter->key.start, "triton_", 7) != 0;
        const char *field = reserved_field(parameter, &fits);
        PyObject *key = !fits ? NULL : field == NULL ? string(parameter->key) : PyUnicode_FromString(field);
        PyObject *value = key == NULL ? NULL : make_value(parameter), *target = field == NULL ? custom : fields;
        int done = value != NULL && !PyDict_Contains(target, key) && PyDict_SetItem(target, key, value) == 0;
        if (done && field != NULL && *field == '\0')
            *binary_default = parameter->flag;
        Py_XDECREF(key);
        Py_XDECREF(value);
        if (!done)
            return 0;
    }
    return 1;
}

/* Whether any output may have to be encoded as JSON, or classified; `regions`: whether any tensor has a place. */
static int needs_json(const struct request *request, int binary_default, int *regions)
{
    int needs = request->outputs == 0 && !binary_default;
    *regions = 0;
    for (Py_ssize_t i = 0; i < request->inputs; i++)
        *regions |= request->input[i].place.is_given;
    for (Py_ssize_t i = 0; i < request->outputs; i++) {
        const struct output *output = &request->output[i];
        *regions |= output->place.is_given;
        needs |= !output->place.is_given && (!output->is_binary || output->classification != 0);
    }
    return needs;
}

/* Return the arguments of a request by their places. */
static PyObject *make_arguments(const struct parts *parts, PyObject *custom)
{
    const struct request *request = parts->request;
    return Py_BuildValue("OONNNO", parts->body->model, parts->body->version,
                         tuple_of(request->inputs, make_input, parts), tuple_of(request->outputs, make_output, parts),
                         request->id.start == NULL ? PyUnicode_FromString("") : string(request->id), custom);
}

/* Return the `InferRequest` of what was read. */
static PyObject *make_request(PyObject *types, const struct request *request, const struct body *body,
                              struct wishes *wishes)
{
    PyObject *custom = PyDict_New(), *fields = PyDict_New(), *arguments = NULL, *made = NULL;
    int regions;
    wishes->is_binary = 0;
    if (custom != NULL && fields != NULL && make_parameters(request, custom, fields, &wishes->is_binary)) {
        wishes->needs_json = needs_json(request, wishes->is_binary, &regions);
        if (PyDict_GetItemString(fields, "") != NULL)
            PyDict_DelItemString(fields, "");
        if (!regions || PyDict_SetItemString(fields, "regions", Py_True) == 0)
            arguments = make_arguments(&(struct parts){types, request, body, NULL}, custom);
        if (arguments != NULL)
            made = PyObject_Call(PyTuple_GET_ITEM(types, REQUEST), arguments, fields);
    }
    Py_XDECREF(custom);
    Py_XDECREF(fields);
    Py_XDECREF(arguments);
    return made;
}

PyObject *read_json_request(PyObject *types, const struct body *body, unsigned long long max_size, struct wishes *wishes)
{
    struct request *request = PyMem_RawMalloc(sizeof *request);
    if (request == NULL)
        return NULL;
    struct cursor from = {body->bytes + body->start, body->bytes + body->json_end};
    Py_ssize_t binary = body->end - body->json_end;
    PyObject *made = NULL;
    int is_read;
    if (body->json_end - body->start < UNLOCKED_FROM) {
        is_read = read_json_part(&from, request, binary, max_size);
    } else {
        Py_BEGIN_ALLOW_THREADS
        is_read = read_json_part(&from, request, binary, max_size);
        Py_END_ALLOW_THREADS
    }
    if (is_read)
        made = make_request(types, request, body, wishes);
    for (Py_ssize_t i = 0; i < request->inputs; i++)
        free(request->input[i].data);
    PyMem_RawFree(request);
    if (made == NULL && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception))
        PyErr_Clear(); /* Python finds it again, and tells the client */
    return made;
}

/* Return the `HttpInfer` of a body whose JSON part ends at `json_end`; None if Python has to read it. */
static PyObject *read_json(PyObject *Py_UNUSED(module), PyObject *given)
{
    struct body body = {0};
    struct wishes wishes;
    unsigned long long max_size;
    Py_buffer bytes;
    PyObject *types, *request = NULL, *infer = NULL;
    if (!PyArg_ParseTuple(given, "OUUOnK:read_json", &types, &body.model, &body.version, &body.object, &body.json_end,
                          &max_size) ||
        !are_json_types(types) || PyObject_GetBuffer(body.object, &bytes, PyBUF_SIMPLE) < 0)
        return NULL;
    body.bytes = bytes.buf;
    body.end = bytes.len;
    if (body.json_end >= 0 && body.json_end <= body.end)
        request = read_json_request(types, &body, max_size, &wishes);
    if (request != NULL)
        infer = PyObject_CallFunctionObjArgs(PyTuple_GET_ITEM(types, INFER), request, wishes.is_binary ? Py_True : Py_False,
                                             wishes.needs_json ? Py_True : Py_False, NULL);
    Py_XDECREF(request);
    PyBuffer_Release(&bytes);
    return infer != NULL || PyErr_Occurred() ? infer : Py_NewRef(Py_None);
}

int are_json_types(PyObject *types)
{
    int are = PyTuple_CheckExact(types) && PyTuple_GET_SIZE(types) == JSON_TYPES;
    if (!are)
        PyErr_SetString(PyExc_TypeError, "the types of requests");
    return are;
}

int add_json(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"read_json", read_json, METH_VARARGS, "Return the request that a body is, or None."},
        {"json_data", json_data, METH_VARARGS, "Return the data of a tensor as JSON, or None."},
        {NULL, NULL, 0, NULL},
    };
    return prepare_numbers() < 0 || prepare_writing() < 0 ? -1 : PyModule_AddFunctions(module, methods);
}
