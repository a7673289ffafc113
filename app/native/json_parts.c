/* Reads the JSON part of an inference request, member by member. */
#include "json_parts.h"

#include <stdlib.h>

/* Read the member of a place that a key names: 1; 0 where it names none, -1 for a wrong one. */
static int read_place(struct cursor *from, struct text key, struct place *place)
{
    uint64_t *number = is_text(key, "shared_memory_offset")      ? &place->offset
                       : is_text(key, "shared_memory_byte_size") ? &place->nbytes
                                                                 : NULL;
    if (number != NULL)
        return (place->is_given = read_unsigned(from, number)) ? 1 : -1;
    if (!is_text(key, "shared_memory_region"))
        return 0;
    return (place->is_given = place->region.start == NULL && read_text(from, &place->region)) ? 1 : -1;
}

static int read_input_parameters(struct cursor *from, struct input *input, int *has_size)
{
    struct text key;
    uint64_t size = 0;
    int first = 1, found;
    while ((found = next_member(from, &first, &key)) == 1) {
        int placed = read_place(from, key, &input->place);
        if (placed < 0 || (!placed && (*has_size || !is_text(key, "binary_data_size") || !read_unsigned(from, &size))))
            return 0;
        *has_size |= !placed;
    }
    input->size = (size_t)size;
    return found == 0;
}

static int read_shape(struct cursor *from, struct input *input)
{
    int first = 1, found;
    while ((found = next_element(from, &first)) == 1)
        if (input->dims == MAX_DIMS || !read_unsigned(from, &input->shape[input->dims++]))
            return 0;
    return found == 0 && input->dims > 0;
}

static int read_datatype(struct cursor *from, enum datatype *datatype)
{
    struct text name;
    if (!read_text(from, &name))
        return 0;
    for (int i = 0; i < DATATYPES; i++) {
        *datatype = (enum datatype)i;
        if (is_text(name, datatype_names[i]))
            return 1;
    }
    return 0;
}

/* Read the array that `source` is; it may come before what says how. */
static int read_data(const struct request *request, struct input *input)
{
    uint64_t count = 1, most = request->max_size / (input->datatype == BYTES ? 1 : datatype_sizes[input->datatype]);
    for (ptrdiff_t i = 0; i < input->dims; i++) {
        if (count > 0 && input->shape[i] > most / count)
            return 0;
        count *= input->shape[i];
    }
    if (input->datatype == FP16 || input->datatype == BF16)
        return 0;
    if (input->datatype != BYTES && count > input->source.size / 2) /* a value and a bracket or a comma */
        return 0;
    struct cursor from = {input->source.start, input->source.start + input->source.size};
    /* A string has two quotes and a bracket or a comma, where its length takes four bytes. */
    input->size = input->datatype == BYTES && count > 0 ? input->source.size / 3 * 4 + 4
                                                       : count * datatype_sizes[input->datatype];
    input->data = malloc(input->size + 1); /* which none has to be empty for */
    if (input->data == NULL)
        return 0;
    if (input->datatype != BYTES || count == 0)
        return read_values(&from, input->datatype, count, input->data);
    return read_strings(&from, input->data, &input->size) && input->size <= request->max_size;
}

static int read_input(struct cursor *from, struct request *request, ptrdiff_t *position)
{
    struct input *input = &request->input[request->inputs++];
    enum { NAME = 1, SHAPE = 2, DATATYPE = 4, PARAMETERS = 8, DATA = 16 };
    struct text key;
    int seen = 0, first = 1, has_size = 0, found;
    *input = (struct input){.start = *position, .end = *position};
    while ((found = next_member(from, &first, &key)) == 1) {
        int member = is_text(key, "name")       ? NAME
                     : is_text(key, "shape")    ? SHAPE
                     : is_text(key, "datatype") ? DATATYPE
                     : is_text(key, "data")     ? DATA
                                                : PARAMETERS;
        if ((seen & member) || (member == PARAMETERS && !is_text(key, "parameters")))
            return 0;
        seen |= member;
        skip_space(from);
        input->source.start = member == DATA ? from->at : input->source.start;
        int is_read = member == NAME       ? read_text(from, &input->name)
                      : member == SHAPE    ? read_shape(from, input)
                      : member == DATATYPE ? read_datatype(from, &input->datatype)
                      : member == DATA     ? skip_array(from)
                                           : read_input_parameters(from, input, &has_size);
        if (!is_read)
            return 0;
        if (member == DATA)
            input->source.size = (size_t)(from->at - input->source.start);
    }
    int has_place = input->place.region.start != NULL, has_data = (seen & DATA) != 0;
    if (found < 0 || (seen & 7) != 7 || has_size + has_place + has_data != 1 || input->place.is_given != has_place)
        return 0;
    if (has_size) {
        if (input->size > (size_t)(PTRDIFF_MAX - *position))
            return 0;
        *position = input->end = *position + (ptrdiff_t)input->size;
    }
    return !has_data || read_data(request, input);
}

static int read_output_parameters(struct cursor *from, struct output *output)
{
    struct text key;
    int first = 1, found, has_binary = 0;
    while ((found = next_member(from, &first, &key)) == 1) {
        int is_read = read_place(from, key, &output->place) == 1;
        if (!is_read && !has_binary && is_text(key, "binary_data"))
            is_read = has_binary = read_bool(from, &output->is_binary);
        else if (!is_read && !output->has_classification && is_text(key, "classification"))
            is_read = output->has_classification = read_unsigned(from, &output->classification);
        if (!is_read)
            return 0;
    }
    int has_place = output->place.region.start != NULL;
    return found == 0 && output->place.is_given == has_place &&
           !(has_place && (output->is_binary || output->has_classification));
}

static int read_output(struct cursor *from, struct request *request)
{
    struct output *output = &request->output[request->outputs++];
    struct text key;
    int first = 1, found, has_parameters = 0;
    *output = (struct output){0};
    while ((found = next_member(from, &first, &key)) == 1) {
        int is_read = 0;
        if (is_text(key, "name") && output->name.start == NULL)
            is_read = read_text(from, &output->name);
        else if (is_text(key, "parameters") && !has_parameters)
            is_read = has_parameters = read_output_parameters(from, output);
        if (!is_read)
            return 0;
    }
    return found == 0 && output->name.start != NULL;
}

static int read_parameters(struct cursor *from, struct request *request)
{
    struct text key;
    int first = 1, found;
    while ((found = next_member(from, &first, &key)) == 1) {
        if (request->parameters == MAX_ENTRIES)
            return 0;
        struct parameter *parameter = &request->parameter[request->parameters++];
        *parameter = (struct parameter){.key = key};
        skip_space(from);
        char begins = from->at < from->end ? *from->at : '\0';
        parameter->kind = begins == '"' ? TEXT : begins == 't' || begins == 'f' ? FLAG : WHOLE;
        int is_read = parameter->kind == TEXT   ? read_text(from, &parameter->text)
                      : parameter->kind == FLAG ? read_bool(from, &parameter->flag)
                                                : read_number(from, &parameter->number);
        if (!is_read)
            return 0;
        if (parameter->kind == WHOLE && !parameter->number.is_integer)
            parameter->kind = REAL;
    }
    return found == 0;
}

static int read_entries(struct cursor *from, struct request *request, int are_inputs, ptrdiff_t *position)
{
    int first = 1, found;
    while ((found = next_element(from, &first)) == 1) {
        if ((are_inputs ? request->inputs : request->outputs) == MAX_ENTRIES)
            return 0;
        if (!(are_inputs ? read_input(from, request, position) : read_output(from, request)))
            return 0;
    }
    return found == 0;
}

int read_json_part(struct cursor *from, struct request *request, ptrdiff_t binary, uint64_t max_size)
{
    enum { ID = 1, PARAMETERS = 2, INPUTS = 4, OUTPUTS = 8 };
    struct text key;
    ptrdiff_t position = 0;
    int seen = 0, first = 1, found;
    request->inputs = request->outputs = request->parameters = 0;
    request->id.start = NULL;
    request->max_size = max_size;
    while ((found = next_member(from, &first, &key)) == 1) {
        int member = is_text(key, "id")           ? ID
                     : is_text(key, "parameters") ? PARAMETERS
                     : is_text(key, "inputs")     ? INPUTS
                                                  : OUTPUTS;
        if ((seen & member) || (member == OUTPUTS && !is_text(key, "outputs")))
            return 0;
        seen |= member;
        int is_read = member == ID           ? read_text(from, &request->id)
                      : member == PARAMETERS ? read_parameters(from, request)
                                             : read_entries(from, request, member == INPUTS, &position);
        if (!is_read)
            return 0;
    }
    skip_space(from);
    return found == 0 && from->at == from->end && request->inputs > 0 && position == binary;
}
