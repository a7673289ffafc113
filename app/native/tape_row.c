/* Rows of a tape: those that most are. `client/nereid_client/tape/segments.py` has the format, and `app/tape/rows.py`
writes all others: `write_row` returns None for what it does not know. */
#include "msgpack.h"

enum { LONGEST_HEAD = 8 << 10, MOST_PARTS = 64, FRAME = 28, SUMS = 8, ROW_KIND = 1, HAS_SUM = 1 };
enum argument { REQUEST_OF, RESPONSE_OF, FIELDS, MOST, ARRIVED, MONOTONIC, INGRESS, NUMBER, MODEL, TOKEN, OFFSET, REASON,
                PROBABILITY, REPLAYABLE, ARGUMENTS };

/* The data of the tensors behind a head, in their order. */
struct body {
    Py_buffer parts[MOST_PARTS];
    int count;
    Py_ssize_t nbytes;
};

/* crc32 as zlib's, of eight bytes at once. */
static uint32_t crc_tables[8][256];

void fill_crc_tables(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t sum = i;
        for (int bit = 0; bit < 8; bit++)
            sum = sum >> 1 ^ (sum & 1 ? 0xedb88320u : 0);
        crc_tables[0][i] = sum;
    }
    for (int table = 1; table < 8; table++)
        for (int i = 0; i < 256; i++)
            crc_tables[table][i] = crc_tables[table - 1][i] >> 8 ^ crc_tables[0][crc_tables[table - 1][i] & 0xff];
}

static uint32_t crc32_of(uint32_t sum, const unsigned char *bytes, size_t size)
{
    sum = ~sum;
    for (; size >= 8; bytes += 8, size -= 8) {
        sum ^= (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
        sum = crc_tables[7][sum & 0xff] ^ crc_tables[6][sum >> 8 & 0xff] ^ crc_tables[5][sum >> 16 & 0xff] ^
              crc_tables[4][sum >> 24] ^ crc_tables[3][bytes[4]] ^ crc_tables[2][bytes[5]] ^ crc_tables[1][bytes[6]] ^
              crc_tables[0][bytes[7]];
    }
    for (; size > 0; bytes++, size--)
        sum = sum >> 8 ^ crc_tables[0][(sum ^ *bytes) & 0xff];
    return ~sum;
}

static void put_literal(struct writer *to, const char *text)
{
    put_size(to, strlen(text), 0xa0, 32, 0xd9);
    put_bytes(to, text, strlen(text));
}

static void put_flag(struct writer *to, PyObject *flag)
{
    to->failed |= flag != Py_True && flag != Py_False;
    put_big_endian(to, flag == Py_True ? 0xc3 : 0xc2, 0, 0);
}

static void put_real(struct writer *to, PyObject *number)
{
    uint64_t bits = 0;
    double value = PyFloat_CheckExact(number) ? PyFloat_AS_DOUBLE(number) : 0.0;
    to->failed |= !PyFloat_CheckExact(number);
    memcpy(&bits, &value, sizeof bits);
    put_big_endian(to, 0xcb, bits, 8);
}

static void put_identifier(struct writer *to, PyObject *identifier)
{
    if (identifier != NULL && PyUnicode_CheckExact(identifier))
        put_text(to, identifier);
    else
        put_number(to, identifier);
}

/* Return whether a tensor's bytes are kept (1), or its size alone (0); -1 for what is left to Python. */
static int is_kept(PyObject *fields, PyObject *name, PyObject *datatype)
{
    PyObject *treatment = PyDict_GET_SIZE(fields) == 0 ? NULL : PyDict_GetItemWithError(fields, name);
    if (treatment == NULL)
        return PyErr_Occurred() ? -1 : PyUnicode_CompareWithASCIIString(datatype, "BYTES") != 0;
    if (!PyUnicode_Check(treatment))
        return -1;
    if (PyUnicode_CompareWithASCIIString(treatment, "keep") == 0)
        return 1;
    return PyUnicode_CompareWithASCIIString(treatment, "size") == 0 ? 0 : -1;
}

static void put_tensor(const Messages *self, struct writer *to, PyObject *tensor, PyObject *fields, struct body *body, int *redacted)
{
    PyObject *name = field(self, TENSOR, tensor, T_NAME), *datatype = field(self, TENSOR, tensor, T_DATATYPE);
    PyObject *shape = field(self, TENSOR, tensor, T_SHAPE), *data = field(self, TENSOR, tensor, T_DATA);
    to->failed |= name == NULL || datatype == NULL || shape == NULL || data == NULL || !PyTuple_CheckExact(shape) ||
                  !PyUnicode_CheckExact(name) || !PyUnicode_CheckExact(datatype) || body->count == MOST_PARTS;
    int kept = to->failed ? -1 : is_kept(fields, name, datatype);
    if (kept < 0 || PyObject_GetBuffer(data, &body->parts[body->count], PyBUF_SIMPLE) < 0) {
        to->failed = 1;
        return;
    }
    Py_ssize_t nbytes = body->parts[body->count].len;
    put_array(to, 6);
    put_text(to, name);
    put_text(to, datatype);
    put_array(to, PyTuple_GET_SIZE(shape));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(shape); i++)
        put_number(to, PyTuple_GET_ITEM(shape, i));
    put_unsigned(to, (uint64_t)nbytes);
    put_literal(to, kept ? "kept" : "size");
    put_unsigned(to, kept ? (uint64_t)nbytes : 0);
    if (kept) {
        body->count++;
        body->nbytes += nbytes;
    } else {
        *redacted = 1;
        PyBuffer_Release(&body->parts[body->count]);
    }
}

static void put_tensors(const Messages *self, struct writer *to, PyObject *tensors, PyObject *fields, struct body *body, int *redacted)
{
    Py_ssize_t count = tensors != NULL && PyTuple_CheckExact(tensors) ? PyTuple_GET_SIZE(tensors) : -1;
    to->failed |= count < 0;
    put_array(to, count < 0 ? 0 : count);
    for (Py_ssize_t i = 0; i < count && !to->failed; i++) {
        PyObject *tensor = PyTuple_GET_ITEM(tensors, i);
        if (Py_TYPE(tensor) != self->types[TENSOR])
            to->failed = 1;
        else
            put_tensor(self, to, tensor, fields, body, redacted);
    }
}

static void put_requested(const Messages *self, struct writer *to, PyObject *outputs)
{
    Py_ssize_t count = outputs != NULL && PyTuple_CheckExact(outputs) ? PyTuple_GET_SIZE(outputs) : -1;
    to->failed |= count < 0;
    put_array(to, count < 0 ? 0 : count);
    for (Py_ssize_t i = 0; i < count && !to->failed; i++) {
        PyObject *output = PyTuple_GET_ITEM(outputs, i);
        to->failed |= Py_TYPE(output) != self->types[OUTPUT];
        if (!to->failed)
            put_text(to, field(self, OUTPUT, output, W_NAME));
    }
}

/* Write the fields of a row, in their order. */
static void put_row(const Messages *self, struct writer *to, PyObject *const *given, struct body *body)
{
    PyObject *request = given[REQUEST_OF], *response = given[RESPONSE_OF];
    int redacted = 0;
    put_array(to, 21);
    put_number(to, given[ARRIVED]);
    put_number(to, given[MONOTONIC]);
    put_text(to, given[INGRESS]);
    put_number(to, given[NUMBER]);
    put_text(to, given[MODEL]);
    put_text(to, field(self, REQUEST, request, Q_MODEL_VERSION));
    put_text(to, field(self, ANSWER, response, A_MODEL_VERSION));
    put_text(to, field(self, REQUEST, request, Q_ID));
    put_identifier(to, field(self, REQUEST, request, Q_SEQUENCE_ID));
    put_flag(to, field(self, REQUEST, request, Q_SEQUENCE_START));
    put_flag(to, field(self, REQUEST, request, Q_SEQUENCE_END));
    put_number(to, field(self, REQUEST, request, Q_PRIORITY));
    put_number(to, field(self, REQUEST, request, Q_TIMEOUT_US));
    put_text(to, given[TOKEN]);
    put_requested(self, to, field(self, REQUEST, request, Q_OUTPUTS));
    put_big_endian(to, 0x80, 0, 0); /* no parameters */
    put_tensors(self, to, field(self, REQUEST, request, Q_INPUTS), given[FIELDS], body, &redacted);
    put_array(to, 1);
    put_array(to, 5);
    put_number(to, given[OFFSET]);
    put_tensors(self, to, field(self, ANSWER, response, A_OUTPUTS), given[FIELDS], body, &redacted);
    put_literal(to, "");
    put_literal(to, "");
    put_flag(to, Py_True);
    put_text(to, given[REASON]);
    put_real(to, given[PROBABILITY]);
    int is_fixed = given[REPLAYABLE] != Py_True;
    put_array(to, is_fixed + redacted);
    if (is_fixed)
        put_literal(to, "no-replay");
    if (redacted)
        put_literal(to, "redacted");
}

static void put_little_endian(unsigned char *place, uint64_t value, int width)
{
    for (int i = 0; i < width; i++)
        place[i] = (unsigned char)(value >> 8 * i);
}

/* Return the record of a head with a body. */
static PyObject *record(const struct writer *head, const struct body *body, uint64_t moment)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, FRAME + SUMS + (Py_ssize_t)head->size + body->nbytes);
    if (bytes == NULL)
        return NULL;
    unsigned char *frame = (unsigned char *)PyBytes_AS_STRING(bytes), *at = frame + FRAME + SUMS + head->size;
    memset(frame, 0, FRAME);
    memcpy(frame, "REC1", 4);
    frame[4] = ROW_KIND;
    frame[5] = HAS_SUM;
    put_little_endian(frame + 8, moment, 8);
    put_little_endian(frame + 16, head->size, 4);
    put_little_endian(frame + 20, (uint64_t)body->nbytes, 8);
    memcpy(frame + FRAME + SUMS, head->bytes, head->size);
    for (int i = 0; i < body->count; i++) {
        memcpy(at, body->parts[i].buf, (size_t)body->parts[i].len);
        at += body->parts[i].len;
    }
    uint32_t sum = crc32_of(crc32_of(0, frame, FRAME), head->bytes, head->size);
    put_little_endian(frame + FRAME, sum, 4);
    put_little_endian(frame + FRAME + 4, crc32_of(0, at - body->nbytes, (size_t)body->nbytes), 4);
    return bytes;
}

static int is_plain(const Messages *self, PyObject *const *given)
{
    PyObject *request = given[REQUEST_OF], *response = given[RESPONSE_OF];
    if (Py_TYPE(request) != self->types[REQUEST] || Py_TYPE(response) != self->types[ANSWER] ||
        !PyDict_CheckExact(given[FIELDS]))
        return 0;
    PyObject *parameters = field(self, REQUEST, request, Q_PARAMETERS);
    return parameters != NULL && PyDict_CheckExact(parameters) && PyDict_GET_SIZE(parameters) == 0 &&
           field(self, REQUEST, request, Q_REGIONS) == Py_False && field(self, ANSWER, response, A_FAILURE) == Py_None &&
           field(self, ANSWER, response, A_FINAL) == Py_True;
}

PyObject *write_row(Messages *self, PyObject *const *arguments, Py_ssize_t count)
{
    unsigned char bytes[LONGEST_HEAD];
    struct writer to = {bytes, 0, sizeof bytes, 0, NULL, NULL};
    struct body body = {.count = 0};
    if (count != ARGUMENTS) {
        PyErr_Format(PyExc_TypeError, "%d arguments", ARGUMENTS);
        return NULL;
    }
    Py_ssize_t most = PyLong_AsSsize_t(arguments[MOST]);
    if (most < 0 && PyErr_Occurred())
        return NULL;
    if (!is_plain(self, arguments))
        Py_RETURN_NONE;
    put_row(self, &to, arguments, &body);
    PyObject *found = NULL;
    if (!to.failed && body.nbytes <= most)
        found = record(&to, &body, PyLong_AsUnsignedLongLong(arguments[ARRIVED]));
    else
        PyErr_Clear();
    for (int i = 0; i < body.count; i++)
        PyBuffer_Release(&body.parts[i]);
    return none_if_left(found);
}
