/*
 * Stand-in for cuDNN's graph API: one convolution a graph, or the operations of attention.
 *
 * A descriptor keeps its attributes as they are set, and what it refers to; which it
 * has, of what type and how many, is a table. cuDNN's rules are checked when it is
 * finalized or executed. Of the engines (below), some do what notes warn of, so that
 * a choice that ignores the notes is seen in the results.
 *
 * SHARD_CUDA_EMULATION_ENGINES makes engines fail, "fast=execution,plain=absent": by
 * their names and what they do (faults below); read at each call.
 */
#include "cudnn.h"

#include "convolution.h"
#include "emulation.h"
#include "operations.h"
#include "products.h"

#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

using namespace emulation;

enum { HANDLE_BYTES = 256 << 10, CODE_BYTES = 64 << 10 /* loaded at the first convolution of a type */ };

struct cudnnContext {
    LibraryMemory memory;
    std::map<cudaDataType, LibraryMemory> code;
    cudaStream_t stream = nullptr;
};

namespace {

struct Descriptor;
using Reference = std::shared_ptr<Descriptor>;

struct Descriptor {
    cudnnBackendDescriptorType_t type;
    bool final = false;
    std::map<int, std::vector<int64_t>> numbers; /* also enums and pointers */
    std::map<int, float> factors;
    std::map<int, Reference> parts;
    std::vector<Reference> operations; /* of a graph; parts has the first one */
    int engine = -1; /* of an engine, a configuration, a plan */
    bool destroyed = false;
};

/* An attribute: whose, which, of what type, least and greatest number of elements, whether it may be left out. */
struct Rule {
    int owner, name, type;
    int64_t least, most;
    bool optional = false;
};

const Rule rules[] = {
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, 1},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, 1},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, 4},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, 4},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, 1, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, 1, true},
    {CUDNN_BACKEND_MATMUL_DESCRIPTOR, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_CDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, 1},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, 1},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, 1, true},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
     1},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1,
     true},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1,
     true},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, 1},
    {CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, 1},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, 1},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, 2},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, 2},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, 2},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, 2},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, 1},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 50},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, 1},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, 1},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 1, 64},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 1, 64},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, 1},
};

/* The operations' attributes are numbered alike: alpha, beta, windows, then three images. */
struct Operation {
    cudnnBackendDescriptorType_t type;
    Convolution::Kind kind;
    int first; /* alpha's number */
    int weight, x, y;
};
const Operation operations[] = {
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, Convolution::FORWARD, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, Convolution::BACKWARD_DATA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, Convolution::BACKWARD_WEIGHT,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY},
};

const Operation *operation_of(int type)
{
    for (const Operation &operation : operations)
        if (operation.type == type)
            return &operation;
    return nullptr;
}

/* false if the descriptor has no such attribute. */
bool find_rule(int owner, int name, Rule *found)
{
    for (const Rule &rule : rules)
        if (rule.owner == owner && rule.name == name) {
            *found = rule;
            return true;
        }
    const Operation *operation = operation_of(owner);
    if (!operation || name < operation->first || name > operation->first + 5)
        return false;
    *found = {owner, name, name < operation->first + 2 ? CUDNN_TYPE_FLOAT : CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1};
    return true;
}

size_t element_size(int type)
{
    return type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_HANDLE || type == CUDNN_TYPE_VOID_PTR ? 8 : 4;
}

Descriptor *descriptor_of(cudnnBackendDescriptor_t handle)
{
    return ((Reference *)handle)->get();
}

thread_local char last_error[200];

cudnnStatus_t refuse(cudnnStatus_t status, const char *why)
{
    snprintf(last_error, sizeof last_error, "%s", why);
    return status;
}

/* ---- what finalizing finds wrong ---- */

cudnnStatus_t check_complete(const Descriptor &d)
{
    for (const Rule &rule : rules)
        if (rule.owner == d.type && !rule.optional && !d.numbers.count(rule.name) && !d.parts.count(rule.name))
            return refuse(CUDNN_STATUS_BAD_PARAM, "an attribute is missing");
    const Operation *operation = operation_of(d.type);
    for (int i = 0; operation && i < 6; i++)
        if (!d.parts.count(operation->first + i) && !d.factors.count(operation->first + i))
            return refuse(CUDNN_STATUS_BAD_PARAM, "an operation's attribute is missing");
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t check_tensor(Descriptor &d)
{
    int64_t alignment = d.numbers[CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT][0];
    if (alignment < 1 || (alignment & (alignment - 1)) != 0)
        return refuse(CUDNN_STATUS_BAD_PARAM, "an alignment is no power of two");
    for (int i = 0; i < 4; i++)
        if (d.numbers[CUDNN_ATTR_TENSOR_DIMENSIONS][(size_t)i] < 1 || d.numbers[CUDNN_ATTR_TENSOR_STRIDES][(size_t)i] < 1)
            return refuse(CUDNN_STATUS_BAD_PARAM, "a size or stride is below 1");
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t check_windows(Descriptor &d)
{
    if (d.numbers[CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS][0] != 2)
        return refuse(CUDNN_STATUS_BAD_PARAM, "the paddings are not as many as the dimensions");
    for (size_t i = 0; i < 2; i++)
        if (d.numbers[CUDNN_ATTR_CONVOLUTION_DILATIONS][i] < 1 || d.numbers[CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES][i] < 1 ||
            d.numbers[CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS][i] < 0 || d.numbers[CUDNN_ATTR_CONVOLUTION_POST_PADDINGS][i] < 0)
            return refuse(CUDNN_STATUS_BAD_PARAM, "a stride or dilation is below 1, or a padding below 0");
    return CUDNN_STATUS_SUCCESS;
}

Images images_of(Descriptor &tensor)
{
    Images images = {};
    for (size_t i = 0; i < 4; i++) {
        images.size[i] = tensor.numbers[CUDNN_ATTR_TENSOR_DIMENSIONS][i];
        images.stride[i] = tensor.numbers[CUDNN_ATTR_TENSOR_STRIDES][i];
    }
    return images;
}

cudnnStatus_t check_operation(Descriptor &d)
{
    const Operation &o = *operation_of(d.type);
    Descriptor &w = *d.parts[o.first + 2];
    const int tensors[] = {o.weight, o.x, o.y};
    if (w.type != CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)
        return refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "no convolution descriptor");
    int64_t type = -1;
    for (int name : tensors) {
        if (d.parts[name]->type != CUDNN_BACKEND_TENSOR_DESCRIPTOR)
            return refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "no tensor descriptor");
        int64_t own = d.parts[name]->numbers[CUDNN_ATTR_TENSOR_DATA_TYPE][0];
        if (type >= 0 && own != type)
            return refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "tensors of several types");
        type = own;
    }
    if (d.factors[o.first + 1] != 0 && w.numbers[CUDNN_ATTR_CONVOLUTION_DILATIONS] != std::vector<int64_t>{1, 1})
        return refuse(CUDNN_STATUS_BAD_PARAM, "dilated windows whose results are added to what is there");
    Images x = images_of(*d.parts[o.x]), weight = images_of(*d.parts[o.weight]), y = images_of(*d.parts[o.y]);
    if (x.size[0] != y.size[0] || weight.size[0] != y.size[1] || x.size[1] % weight.size[1] != 0 ||
        y.size[1] % (x.size[1] / weight.size[1]) != 0)
        return refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "numbers of images or channels that do not go together");
    for (size_t i = 0; i < 2; i++) {
        int64_t window = (weight.size[2 + i] - 1) * w.numbers[CUDNN_ATTR_CONVOLUTION_DILATIONS][i] + 1;
        int64_t room = x.size[2 + i] + w.numbers[CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS][i] +
                       w.numbers[CUDNN_ATTR_CONVOLUTION_POST_PADDINGS][i] - window;
        if (room < 0 || y.size[2 + i] != room / w.numbers[CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES][i] + 1)
            return refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "the result's size is not what the windows give");
    }
    return CUDNN_STATUS_SUCCESS;
}

/* ---- engines ---- */

struct Engine {
    const char *name;
    std::vector<cudnnBackendNumericalNote_t> notes;
    std::vector<cudnnBackendBehaviorNote_t> behavior;
    bool heuristic;  /* named by mode A; the others by the fallback */
    bool narrow;     /* takes 16-bit types */
    bool wide;       /* takes float32 */
    bool forward;    /* takes the forward computation */
    int64_t aligned; /* bytes that all arrays must be aligned to */
    int64_t named;   /* so often by the heuristic */
};

/* ODD and STRANGE refuse when their plan is finalized, LATE when it is executed. */
enum { COMPILED, COARSE, NOISY, ODD, STRANGE, LATE, FAST, PLAIN, NOISY_ATTENTION, ATTENTION };
const Engine engines[] = {
    {"compiled", {CUDNN_NUMERICAL_NOTE_TENSOR_CORE}, {CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION}, true, true, true, true, 16, 1},
    {"coarse",
     {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION},
     {},
     true,
     true,
     false,
     true,
     16,
     1},
    {"noisy", {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}, {}, true, true, true, false, 16, 1},
    {"odd", {CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP}, {}, true, true, true, true, 4, 15},
    {"strange", {}, {}, true, true, true, true, 4, 15},
    {"late", {}, {}, true, true, true, true, 4, 2},
    {"fast", {CUDNN_NUMERICAL_NOTE_TENSOR_CORE}, {}, true, true, true, true, 16, 1},
    {"plain", {}, {}, false, false, true, true, 4, 1},
    {"noisy attention", {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}, {}, true, true, false, true, 16, 1},
    {"attention", {CUDNN_NUMERICAL_NOTE_TENSOR_CORE}, {CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION}, true, true, false, true, 16, 1},
};

/* ABSENT: no heuristic names it; PREREQUISITE: at finalizing, as without NVRTC; WORKSPACE: it
 * needs LARGE_WORKSPACE; the others when it is executed. */
enum Fault { NO_FAULT, ABSENT, PREREQUISITE, WORKSPACE, SUPPORT, PARAMETER, INTERNAL, EXECUTION };
const char *const faults[] = {"", "absent", "prerequisite", "workspace", "support", "parameter", "internal", "execution"};
const int64_t LARGE_WORKSPACE = (int64_t)1 << 30;

Fault fault_of(int engine)
{
    std::string rules = "," + setting("ENGINES", "") + ",", name = std::string(",") + engines[engine].name + "=";
    size_t at = rules.find(name);
    if (at == std::string::npos)
        return NO_FAULT;
    at += name.size();
    std::string fault = rules.substr(at, rules.find(',', at) - at);
    for (int i = ABSENT; i <= EXECUTION; i++)
        if (fault == faults[i])
            return (Fault)i;
    die("SHARD_CUDA_EMULATION_ENGINES: %s is no fault of an engine", fault.c_str());
}

Descriptor &operation_in(Descriptor &graph)
{
    return *graph.parts[CUDNN_ATTR_OPERATIONGRAPH_OPS];
}

bool takes(const Engine &engine, Descriptor &operation)
{
    const Operation &o = *operation_of(operation.type);
    Descriptor &windows = *operation.parts[o.first + 2], &x = *operation.parts[o.x], &weight = *operation.parts[o.weight];
    int64_t type = x.numbers[CUDNN_ATTR_TENSOR_DATA_TYPE][0];
    bool narrow = type == CUDNN_DATA_HALF || type == CUDNN_DATA_BFLOAT16;
    if (type == CUDNN_DATA_DOUBLE || !(narrow ? engine.narrow : engine.wide) || (o.kind == Convolution::FORWARD && !engine.forward))
        return false;
    if (windows.numbers[CUDNN_ATTR_CONVOLUTION_COMP_TYPE][0] != CUDNN_DATA_FLOAT ||
        windows.numbers[CUDNN_ATTR_CONVOLUTION_CONV_MODE][0] != CUDNN_CROSS_CORRELATION)
        return false;
    int64_t of_groups = images_of(weight).size[1], channels = images_of(x).size[1];
    if (of_groups != channels && operation.factors[o.first + 1] != 0)
        return false; /* none adds to what is there in groups */
    bool dilated = windows.numbers[CUDNN_ATTR_CONVOLUTION_DILATIONS] != std::vector<int64_t>{1, 1};
    if (dilated && of_groups != channels)
        return false;
    for (int name : {o.x, o.weight, o.y}) {
        Images images = images_of(*operation.parts[name]);
        if (operation.parts[name]->numbers[CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT][0] < engine.aligned || images.stride[1] != 1)
            return false; /* channels last, of the weights too */
    }
    return true;
}

/* ---- attention ---- */

int64_t number_of(Descriptor &d, int name)
{
    return d.numbers.count(name) ? d.numbers[name][0] : 0;
}

struct Graph {
    std::vector<Tensor> tensors;
    std::vector<Reference> described; /* by which descriptor */
    std::vector<GraphOperation> operations;
    int64_t products = 0;
};

/* The tensor's number in the graph, one more if it is new; -1 without. */
int tensor_in(Graph &graph, Descriptor &operation, int name)
{
    if (!operation.parts.count(name))
        return -1;
    Reference reference = operation.parts[name];
    for (size_t i = 0; i < graph.described.size(); i++)
        if (graph.described[i]->numbers[CUDNN_ATTR_TENSOR_UNIQUE_ID] == reference->numbers[CUDNN_ATTR_TENSOR_UNIQUE_ID]) {
            if (graph.described[i]->numbers != reference->numbers)
                die("cuDNN: two tensors of a graph have one name");
            return (int)i;
        }
    Tensor t = {};
    for (size_t i = 0; i < 4; i++) {
        t.size[i] = reference->numbers[CUDNN_ATTR_TENSOR_DIMENSIONS][i];
        t.stride[i] = reference->numbers[CUDNN_ATTR_TENSOR_STRIDES][i];
    }
    t.type = (cudnnDataType_t)reference->numbers[CUDNN_ATTR_TENSOR_DATA_TYPE][0];
    t.in_memory = !number_of(*reference, CUDNN_ATTR_TENSOR_IS_VIRTUAL) && !number_of(*reference, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
    graph.tensors.push_back(t);
    graph.described.push_back(reference);
    return (int)graph.tensors.size() - 1;
}

Graph graph_of(Descriptor &whole)
{
    Graph graph;
    for (Reference &reference : whole.operations) {
        Descriptor &d = *reference;
        GraphOperation o = {};
        o.other = o.mask = -1;
        switch (d.type) {
        case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
            o.kind = GraphOperation::MATMUL;
            o.x = tensor_in(graph, d, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
            o.other = tensor_in(graph, d, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
            o.result = tensor_in(graph, d, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
            graph.products++;
            break;
        case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: {
            Descriptor &function = *d.parts[CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR];
            o.kind = GraphOperation::POINTWISE;
            o.mode = (cudnnPointwiseMode_t)number_of(function, CUDNN_ATTR_POINTWISE_MODE);
            o.axis = number_of(function, CUDNN_ATTR_POINTWISE_AXIS);
            o.x = tensor_in(graph, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
            o.other = tensor_in(graph, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
            o.mask = tensor_in(graph, d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
            o.result = tensor_in(graph, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
            break;
        }
        case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
            o.kind = GraphOperation::REDUCTION;
            o.reduction =
                (cudnnReduceTensorOp_t)number_of(*d.parts[CUDNN_ATTR_OPERATION_REDUCTION_DESC], CUDNN_ATTR_REDUCTION_OPERATOR);
            o.x = tensor_in(graph, d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
            o.result = tensor_in(graph, d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
            break;
        default:
            o.kind = GraphOperation::RESHAPE;
            o.x = tensor_in(graph, d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
            o.result = tensor_in(graph, d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
        }
        graph.operations.push_back(o);
    }
    return graph;
}

bool is_attention(Descriptor &whole)
{
    return whole.operations.size() > 1;
}

bool fits(int64_t size, int64_t whole)
{
    return size == whole || size == 1;
}

/* Whether an operation's sizes go together, and the operands of products have 16 bits. */
bool is_sound(const Graph &graph, const GraphOperation &o)
{
    const Tensor &x = graph.tensors[(size_t)o.x], &result = graph.tensors[(size_t)o.result];
    if (o.kind == GraphOperation::RESHAPE)
        return extent(x) == extent(result) && x.size[0] * x.size[1] * x.size[2] * x.size[3] ==
                                                  result.size[0] * result.size[1] * result.size[2] * result.size[3];
    if (o.kind == GraphOperation::MATMUL) {
        const Tensor &other = graph.tensors[(size_t)o.other];
        for (int d = 0; d < 2; d++)
            if (x.size[d] != result.size[d] || !fits(other.size[d], result.size[d]))
                return false;
        bool of_scores = !x.in_memory && x.type == CUDNN_DATA_FLOAT; /* cuDNN rounds the gradients of scores for that of queries */
        return x.size[2] == result.size[2] && other.size[3] == result.size[3] && x.size[3] == other.size[2] &&
               other.type != CUDNN_DATA_FLOAT && (of_scores ? graph.products == 5 : x.type != CUDNN_DATA_FLOAT);
    }
    for (int d = 0; d < 4; d++) {
        if (o.kind == GraphOperation::REDUCTION ? !fits(result.size[d], x.size[d]) : !fits(x.size[d], result.size[d]))
            return false;
        for (int of : {o.other, o.mask})
            if (of >= 0 && !fits(graph.tensors[(size_t)of].size[d], result.size[d]))
                return false;
    }
    return o.mode != CUDNN_POINTWISE_GEN_INDEX || result.type == CUDNN_DATA_INT32;
}

/* As cuDNN's engines: operands of 16 bits, and features in eights. */
bool takes_attention(Descriptor &whole)
{
    Graph graph = graph_of(whole);
    for (const GraphOperation &o : graph.operations)
        if (!is_sound(graph, o))
            return false;
    for (size_t i = 0; i < graph.tensors.size(); i++) {
        const Tensor &t = graph.tensors[i];
        if (!t.in_memory)
            continue;
        int64_t features = t.size[t.stride[3] == 1 ? 3 : 2];
        if (t.type == CUDNN_DATA_FLOAT ? t.size[3] != 1 : features % 8 != 0)
            return false;
        if (graph.described[i]->numbers[CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT][0] < engines[ATTENTION].aligned)
            return false;
    }
    return graph.products == 2 || graph.products == 5;
}

/* The backward stores the gradients of the scores. */
int64_t workspace_of_attention(Descriptor &whole)
{
    Graph graph = graph_of(whole);
    int64_t most = 0;
    for (const Tensor &t : graph.tensors)
        if (!t.in_memory && t.type == CUDNN_DATA_FLOAT)
            most = std::max(most, t.size[0] * t.size[1] * t.size[2] * t.size[3]);
    return graph.products == 5 ? 2 * most : 0;
}

std::vector<int> engines_for(Descriptor &heuristic)
{
    Descriptor &whole = *heuristic.parts[CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH];
    bool fallback = heuristic.numbers[CUDNN_ATTR_ENGINEHEUR_MODE][0] == CUDNN_HEUR_MODE_FALLBACK;
    std::vector<int> found;
    if (is_attention(whole)) {
        if (!fallback && fault_of(ATTENTION) != ABSENT && takes_attention(whole))
            found = {NOISY_ATTENTION, ATTENTION};
        return found;
    }
    Descriptor &operation = operation_in(whole);
    for (int i = COMPILED; i <= PLAIN; i++)
        if (engines[i].heuristic != fallback && fault_of(i) != ABSENT && takes(engines[i], operation))
            found.insert(found.end(), (size_t)engines[i].named, i);
    return found;
}

int64_t workspace_of(Descriptor &plan)
{
    Descriptor &graph = *plan.parts[CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG]->parts[CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH];
    if (fault_of(plan.engine) == WORKSPACE)
        return LARGE_WORKSPACE;
    if (is_attention(graph))
        return workspace_of_attention(graph);
    return operation_of(operation_in(graph).type)->kind == Convolution::FORWARD ? 0 : 4096;
}

/* ---- running ---- */

Convolution convolution_of(Descriptor &operation, int engine)
{
    const Operation &o = *operation_of(operation.type);
    Descriptor &windows = *operation.parts[o.first + 2];
    Convolution c = {};
    c.kind = o.kind;
    int64_t type = operation.parts[o.x]->numbers[CUDNN_ATTR_TENSOR_DATA_TYPE][0];
    c.type = type == CUDNN_DATA_HALF ? CUDA_R_16F : type == CUDNN_DATA_BFLOAT16 ? CUDA_R_16BF : CUDA_R_32F;
    c.x = images_of(*operation.parts[o.x]);
    c.weight = images_of(*operation.parts[o.weight]);
    c.y = images_of(*operation.parts[o.y]);
    for (size_t i = 0; i < 2; i++) {
        c.stride[i] = windows.numbers[CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES][i];
        c.pad[i] = windows.numbers[CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS][i];
        c.dilation[i] = windows.numbers[CUDNN_ATTR_CONVOLUTION_DILATIONS][i];
    }
    c.alpha = operation.factors[o.first];
    c.beta = operation.factors[o.first + 1];
    static int runs;
    c.tf32 = engine != PLAIN && c.type == CUDA_R_32F;
    c.coarse = engine == COARSE;
    c.noise = engine == NOISY ? (float)(++runs % 7) * 0.01f : 0;
    return c;
}

/* What an engine's fault makes of its execution. */
cudnnStatus_t fail(int engine)
{
    switch (fault_of(engine)) {
    case SUPPORT:
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "an engine that refuses when it is run");
    case PARAMETER:
        return refuse(CUDNN_STATUS_BAD_PARAM, "an engine that takes its arguments for wrong");
    case INTERNAL:
        return refuse(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, "an engine that finds no memory of its own");
    case EXECUTION:
        return refuse(CUDNN_STATUS_EXECUTION_FAILED_CUDART, "an engine whose last kernel is not launched");
    default:
        return engine == LATE ? refuse(CUDNN_STATUS_NOT_SUPPORTED, "an engine that refuses when it is run") : CUDNN_STATUS_SUCCESS;
    }
}

/* Copies at most `room` notes; *count is how many there are. */
template <class Note> void tell(const std::vector<Note> &notes, int64_t room, int64_t *count, void *to)
{
    *count = (int64_t)notes.size();
    for (int64_t i = 0; i < *count && i < room; i++)
        ((Note *)to)[i] = notes[(size_t)i];
}

/* The pointer of the tensor in the pack; NULL with the error set. */
void *data_of(Descriptor &pack, Descriptor &tensor, cudnnStatus_t *status)
{
    const std::vector<int64_t> &names = pack.numbers[CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS];
    for (size_t i = 0; i < names.size(); i++)
        if (names[i] == tensor.numbers[CUDNN_ATTR_TENSOR_UNIQUE_ID][0]) {
            void *data = (void *)pack.numbers[CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS][i];
            if (!data)
                *status = refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "a tensor without data");
            else if (!number_of(tensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE) &&
                     (uintptr_t)data % (uintptr_t)tensor.numbers[CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT][0] != 0)
                *status = refuse(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, "data that is not aligned as was said");
            return data;
        }
    *status = refuse(CUDNN_STATUS_BAD_PARAM, "a tensor that the pack does not name");
    return nullptr;
}

/* Queues a plan's work. A CUDA graph that is replayed after its plan was destroyed has kernels that are unloaded. */
cudaError_t enqueue_plan(cudaStream_t stream, cudnnBackendDescriptor_t execution, std::function<void()> work)
{
    Reference plan = *(Reference *)execution;
    cudaStreamCaptureStatus captured = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(stream, &captured);
    return enqueue(stream, "cudnnBackendExecute", [=] {
        if (captured == cudaStreamCaptureStatusActive && plan->destroyed)
            die("a graph is replayed whose plan of cuDNN has been destroyed");
        work();
    });
}

/* Queues the graph's operations; `failed` is the status of an engine that fails after them. */
cudnnStatus_t attend(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, Descriptor &whole, Descriptor &pack, void *workspace,
                     size_t workspace_bytes, cudnnStatus_t failed)
{
    Graph graph = graph_of(whole);
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    for (size_t i = 0; i < graph.tensors.size(); i++) {
        Tensor &t = graph.tensors[i];
        Descriptor &d = *graph.described[i];
        if (number_of(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL))
            continue;
        void *data = data_of(pack, d, &status);
        if (status != CUDNN_STATUS_SUCCESS)
            return status;
        if (t.in_memory)
            t.data = data;
        else
            t.values = {t.type == CUDNN_DATA_INT32 ? (float)*(const int32_t *)data : *(const float *)data};
    }
    std::vector<Tensor> tensors = graph.tensors;
    std::vector<GraphOperation> operations = graph.operations;
    cudaError_t error = enqueue_plan(handle->stream, plan, [=] {
        check_range(workspace, workspace_bytes);
        memset(workspace, 0xff, workspace_bytes); /* NaN */
        for (const Tensor &t : tensors)
            if (t.in_memory)
                check_range(t.data, span(t));
        run_operations(tensors, operations);
    });
    return error == cudaSuccess ? failed : CUDNN_STATUS_EXECUTION_FAILED;
}

} // namespace

/* ---- the calls ---- */

size_t cudnnGetVersion(void)
{
    return CUDNN_MAJOR * 10000 + CUDNN_MINOR * 100 + CUDNN_PATCHLEVEL;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    switch (CUDNN_STATUS_CATEGORY(status)) {
    case 0:
        return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_BAD_PARAM:
        return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_NOT_SUPPORTED:
        return status == CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING
                   ? "CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING"
                   : "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_EXECUTION_FAILED:
        return "CUDNN_STATUS_EXECUTION_FAILED";
    }
    return status == CUDNN_STATUS_NOT_INITIALIZED ? "CUDNN_STATUS_NOT_INITIALIZED" : "CUDNN_STATUS_INTERNAL_ERROR";
}

void cudnnGetLastErrorString(char *message, size_t max_size)
{
    snprintf(message, max_size, "%s", last_error);
    last_error[0] = '\0';
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    int device;
    if (!handle)
        return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "cudnnCreate without a handle");
    if (cudaGetDevice(&device) != cudaSuccess)
        return CUDNN_STATUS_NOT_INITIALIZED;
    auto made = std::make_unique<cudnnContext>();
    if (!made->memory.take(HANDLE_BYTES))
        return refuse(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, "cudnnCreate: no memory");
    *handle = made.release();
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    delete handle;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t streamId)
{
    if (!handle)
        return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "cudnnSetStream without a handle");
    handle->stream = streamId;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t descriptorType, cudnnBackendDescriptor_t *descriptor)
{
    if (!descriptor)
        return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no place for a descriptor");
    auto made = std::make_shared<Descriptor>();
    made->type = descriptorType;
    *descriptor = new Reference(made);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor)
{
    if (descriptor)
        descriptor_of(descriptor)->destroyed = true;
    delete (Reference *)descriptor;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t attributeName,
                                       cudnnBackendAttributeType_t attributeType, int64_t elementCount, const void *arrayOfElements)
{
    if (!descriptor || !arrayOfElements)
        return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "an attribute without a descriptor or a value");
    Descriptor &d = *descriptor_of(descriptor);
    Rule rule;
    if (d.final)
        return refuse(CUDNN_STATUS_BAD_PARAM, "a finalized descriptor is set");
    if (!find_rule(d.type, attributeName, &rule))
        return refuse(CUDNN_STATUS_BAD_PARAM, "the descriptor has no such attribute");
    if (rule.type != attributeType)
        return refuse(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "the attribute is of another type");
    if (elementCount < rule.least || elementCount > rule.most)
        return refuse(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND, "the attribute has another number of elements");
    if (attributeType == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        cudnnBackendDescriptor_t part = *(cudnnBackendDescriptor_t *)arrayOfElements;
        if (!part)
            return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "a descriptor that is NULL");
        if (!descriptor_of(part)->final)
            return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "a descriptor that is not finalized is used");
        d.parts[attributeName] = *(Reference *)part;
        for (int64_t i = 0; d.type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR && i < elementCount; i++)
            d.operations.push_back(*(Reference *)((cudnnBackendDescriptor_t *)arrayOfElements)[i]);
    } else if (attributeType == CUDNN_TYPE_FLOAT) {
        d.factors[attributeName] = *(const float *)arrayOfElements;
    } else {
        std::vector<int64_t> values;
        for (int64_t i = 0; i < elementCount && attributeType == CUDNN_TYPE_BOOLEAN; i++)
            values.push_back(((const bool *)arrayOfElements)[i]);
        for (int64_t i = 0; i < elementCount && attributeType != CUDNN_TYPE_BOOLEAN; i++)
            values.push_back(element_size(attributeType) == 8 ? ((const int64_t *)arrayOfElements)[i] : ((const int *)arrayOfElements)[i]);
        if (attributeType == CUDNN_TYPE_HANDLE && values[0] == 0)
            return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "a handle that is NULL");
        d.numbers[attributeName] = values;
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
    if (!descriptor)
        return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "a descriptor that is NULL");
    Descriptor &d = *descriptor_of(descriptor);
    cudnnStatus_t status = check_complete(d);
    if (status == CUDNN_STATUS_SUCCESS)
        switch (d.type) {
        case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
            status = check_tensor(d);
            break;
        case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR:
            status = check_windows(d);
            break;
        case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
            if (engines_for(d).empty())
                status = refuse(CUDNN_STATUS_NOT_SUPPORTED_SHAPE, "no engine computes this");
            break;
        case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
            d.engine = d.parts[CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG]->engine;
            if (d.engine == ODD)
                status = refuse(CUDNN_STATUS_NOT_SUPPORTED, "an engine that makes no plan");
            else if (d.engine == STRANGE)
                status = refuse(CUDNN_STATUS_BAD_PARAM, "an engine that takes what is asked for wrong");
            else if (fault_of(d.engine) == PREREQUISITE)
                status = refuse(CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING, "an engine that lacks a library");
            break;
        case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
            if (d.numbers[CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS].size() != d.numbers[CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS].size())
                status = refuse(CUDNN_STATUS_BAD_PARAM, "names and pointers differ in number");
            break;
        default:
            if (operation_of(d.type))
                status = check_operation(d);
        }
    d.final = status == CUDNN_STATUS_SUCCESS;
    return status;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor, cudnnBackendAttributeName_t attributeName,
                                       cudnnBackendAttributeType_t attributeType, int64_t requestedElementCount,
                                       int64_t *elementCount, void *arrayOfElements)
{
    if (!descriptor || !elementCount || (!arrayOfElements && requestedElementCount > 0))
        return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "an attribute is asked for without a place for it");
    Descriptor &d = *descriptor_of(descriptor);
    if (!d.final)
        return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "a descriptor that is not finalized is asked");
    if (attributeName == CUDNN_ATTR_ENGINEHEUR_RESULTS && attributeType == CUDNN_TYPE_BACKEND_DESCRIPTOR &&
        d.type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR) {
        std::vector<int> found = engines_for(d);
        *elementCount = (int64_t)found.size();
        for (int64_t i = 0; i < *elementCount && i < requestedElementCount; i++) {
            Descriptor &result = *descriptor_of(((cudnnBackendDescriptor_t *)arrayOfElements)[i]);
            if (result.type != CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)
                return refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "results are engine configurations");
            result.engine = found[(size_t)i];
            result.parts[CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH] = d.parts[CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH];
            result.final = true;
        }
        return CUDNN_STATUS_SUCCESS;
    }
    if (attributeName == CUDNN_ATTR_ENGINECFG_ENGINE && attributeType == CUDNN_TYPE_BACKEND_DESCRIPTOR &&
        d.type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR && requestedElementCount == 1) {
        Descriptor &engine = *descriptor_of(*(cudnnBackendDescriptor_t *)arrayOfElements);
        if (engine.type != CUDNN_BACKEND_ENGINE_DESCRIPTOR)
            return refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "an engine is asked for");
        engine.engine = d.engine;
        engine.final = true;
        *elementCount = 1;
        return CUDNN_STATUS_SUCCESS;
    }
    if (d.type == CUDNN_BACKEND_ENGINE_DESCRIPTOR && attributeName == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE &&
        attributeType == CUDNN_TYPE_NUMERICAL_NOTE) {
        tell(engines[d.engine].notes, requestedElementCount, elementCount, arrayOfElements);
        return CUDNN_STATUS_SUCCESS;
    }
    if (d.type == CUDNN_BACKEND_ENGINE_DESCRIPTOR && attributeName == CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE &&
        attributeType == CUDNN_TYPE_BEHAVIOR_NOTE) {
        tell(engines[d.engine].behavior, requestedElementCount, elementCount, arrayOfElements);
        return CUDNN_STATUS_SUCCESS;
    }
    if (d.type == CUDNN_BACKEND_ENGINE_DESCRIPTOR && attributeName == CUDNN_ATTR_ENGINE_GLOBAL_INDEX &&
        attributeType == CUDNN_TYPE_INT64 && requestedElementCount == 1) {
        *(int64_t *)arrayOfElements = d.engine;
        *elementCount = 1;
        return CUDNN_STATUS_SUCCESS;
    }
    if (attributeName == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && attributeType == CUDNN_TYPE_INT64 &&
        d.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR && requestedElementCount == 1) {
        *(int64_t *)arrayOfElements = workspace_of(d);
        *elementCount = 1;
        return CUDNN_STATUS_SUCCESS;
    }
    return refuse(CUDNN_STATUS_BAD_PARAM, "the descriptor has no such attribute to tell");
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t executionPlan, cudnnBackendDescriptor_t variantPack)
{
    if (!handle || !executionPlan || !variantPack)
        return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "a handle, plan or pack that is NULL");
    Descriptor &plan = *descriptor_of(executionPlan), &pack = *descriptor_of(variantPack);
    if (plan.type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR || pack.type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
        return refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "no plan or no pack");
    if (!plan.final || !pack.final)
        return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "a plan or pack that is not finalized");
    if (plan.parts[CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG]->destroyed) /* whether cuDNN minds, it does not say */
        return refuse(CUDNN_STATUS_BAD_PARAM, "the plan's configuration has been destroyed");
    cudnnStatus_t failed = fail(plan.engine);
    if (CUDNN_STATUS_CATEGORY(failed) == CUDNN_STATUS_NOT_SUPPORTED || CUDNN_STATUS_CATEGORY(failed) == CUDNN_STATUS_BAD_PARAM)
        return failed;
    void *workspace = (void *)pack.numbers[CUDNN_ATTR_VARIANT_PACK_WORKSPACE][0];
    size_t workspace_bytes = (size_t)workspace_of(plan);
    if (workspace_bytes > 0 && !workspace)
        return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "the plan needs workspace");
    Descriptor &whole = *plan.parts[CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG]->parts[CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH];
    if (is_attention(whole))
        return attend(handle, executionPlan, whole, pack, workspace, workspace_bytes, failed);
    Descriptor &operation = operation_in(whole);
    const Operation &o = *operation_of(operation.type);
    Convolution c = convolution_of(operation, plan.engine);
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    c.x.data = data_of(pack, *operation.parts[o.x], &status);
    c.weight.data = data_of(pack, *operation.parts[o.weight], &status);
    c.y.data = data_of(pack, *operation.parts[o.y], &status);
    if (status != CUDNN_STATUS_SUCCESS)
        return status;
    if (!handle->code[c.type].take(CODE_BYTES))
        return refuse(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, "cudnnBackendExecute: no memory");
    cudaError_t error = enqueue_plan(handle->stream, executionPlan, [=] {
        check_range(workspace, workspace_bytes);
        check_range(c.x.data, span(c.x, c.type));
        check_range(c.weight.data, span(c.weight, c.type));
        check_range(c.y.data, span(c.y, c.type));
        convolve(c);
    });
    return error == cudaSuccess ? failed /* what it has done so far stays */ : CUDNN_STATUS_EXECUTION_FAILED;
}
