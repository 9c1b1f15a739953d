/* Meshes: the world's ranks in a grid of named axes, row-major: the last axis varies fastest. */
#include "distributed/distributed.h"

#include "base/options.h"
#include "comm/function.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 16, TEXT_BYTES = 128 };

/* The axes that a rank asks for. */
typedef struct grid {
    int axes;
    int size[SHARD_MESH_AXES];
    char name[SHARD_MESH_AXES][NAME_BYTES];
} grid;

struct shard_mesh {
    grid grid;
    int coordinate[SHARD_MESH_AXES];
    shard_group *along[SHARD_MESH_AXES];    /* the ranks that differ from this one along the axis alone */
    shard_group *replicas[SHARD_MESH_AXES]; /* the ranks with the same coordinate along the axis */
};

/* "data 2 x model 4" */
static const char *grid_text(const grid *wanted, char text[TEXT_BYTES])
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < wanted->axes; i++)
        used += (size_t)snprintf(text + used, TEXT_BYTES - used, "%s%s %d", i ? " x " : "", wanted->name[i], wanted->size[i]);
    return text;
}

static int find_axis(const grid *in, const char *name)
{
    for (int i = 0; i < in->axes; i++)
        if (strcmp(in->name[i], name) == 0)
            return i;
    return -1;
}

static shard_status add_axis(grid *to, const char *name, int size)
{
    if (!*name || strlen(name) >= NAME_BYTES)
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_mesh_create: the axis name \"%s\" is empty or longer than %d characters",
                           name, NAME_BYTES - 1);
    if (find_axis(to, name) >= 0)
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_mesh_create: two axes are named \"%s\"", name);
    snprintf(to->name[to->axes], NAME_BYTES, "%s", name);
    to->size[to->axes++] = size;
    return SHARD_OK;
}

static shard_status read_options(const shard_mesh_options *options, grid *wanted)
{
    bool named = options->axes[0].name != NULL;
    for (int i = 1; i < SHARD_MESH_AXES; i++)
        if (options->axes[i].name && !options->axes[i - 1].name)
            return shard_error(SHARD_ERROR_ARGUMENT,
                               "shard_mesh_create: axis %d, \"%s\", follows one without a name: leave none out before it", i,
                               options->axes[i].name);
    if (named && (options->data != -1 || options->model != 1))
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_mesh_create: axes are given, and data or model too: name these as axes");
    if (!named) {
        SHARD_TRY(add_axis(wanted, "data", options->data));
        return add_axis(wanted, "model", options->model);
    }
    for (int i = 0; i < SHARD_MESH_AXES && options->axes[i].name; i++)
        SHARD_TRY(add_axis(wanted, options->axes[i].name, options->axes[i].size));
    return SHARD_OK;
}

/* Sets the size of the axis with size -1: the ranks that remain. */
static shard_status fit_to_world(grid *wanted, int world)
{
    char text[TEXT_BYTES];
    int64_t known = 1;
    int open = -1;
    for (int i = 0; i < wanted->axes; i++) {
        int size = wanted->size[i];
        if (size < -1 || size == 0 || (size == -1 && open >= 0))
            return shard_error(
                SHARD_ERROR_ARGUMENT,
                "shard_mesh_create: %s: sizes are 1 or more, and -1 for one axis at most, which takes what is left",
                grid_text(wanted, text));
        if (size == -1)
            open = i;
        else if (__builtin_mul_overflow(known, size, &known))
            known = INT64_MAX;
    }
    if (open >= 0 && world % known != 0)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "shard_mesh_create: %s: groups of %" PRId64 " do not divide the world's %d ranks",
                           grid_text(wanted, text), known, world);
    if (open >= 0)
        wanted->size[open] = (int)(world / known);
    else if (known != world)
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_mesh_create: %s is not the world's size, %d", grid_text(wanted, text),
                           world);
    return SHARD_OK;
}

/* A group of all ranks is the world itself: an error of one rank breaks that one for none of them. */
static shard_group *split_world(int color, int ranks)
{
    shard_group *world = shard_world();
    if (ranks == shard_group_size(world))
        return world;
    shard_group *group = shard_group_split(world, color);
    if (group)
        group->is_owned = true;
    return group;
}

/* The axis's two kinds of groups. With two axes the replicas of one are the ranks along the other. */
static shard_status make_groups_of(shard_mesh *mesh, int axis, int rank)
{
    int stride = 1, size = mesh->grid.size[axis];
    for (int i = axis + 1; i < mesh->grid.axes; i++)
        stride *= mesh->grid.size[i];
    mesh->coordinate[axis] = rank / stride % size;
    mesh->along[axis] = split_world(rank - mesh->coordinate[axis] * stride, size);
    if (mesh->along[axis] && mesh->grid.axes != 2)
        mesh->replicas[axis] = split_world(mesh->coordinate[axis], shard_group_size(shard_world()) / size);
    return shard_last_status();
}

/* Joint over the world. All ranks need the same grid: grids that differ may each fit the world, and have groups that overlap. */
static shard_status make_groups(shard_mesh *mesh, const shard_mesh_options *options)
{
    char text[TEXT_BYTES];
    shard_group *world = shard_world();
    if (mesh && read_options(options, &mesh->grid) == SHARD_OK && fit_to_world(&mesh->grid, shard_group_size(world)) == SHARD_OK)
        shard_require_identical("%s", grid_text(&mesh->grid, text));
    shard_status status = shard_agree(world);
    for (int axis = 0; status == SHARD_OK && axis < mesh->grid.axes; axis++)
        status = make_groups_of(mesh, axis, shard_group_rank(world));
    return status;
}

static shard_group *replicas_of(const shard_mesh *mesh, int axis)
{
    return mesh->grid.axes == 2 ? mesh->along[1 - axis] : mesh->replicas[axis];
}

shard_mesh *shard_mesh_create_with(const shard_mesh_options *given)
{
    SHARD_FUNCTION("shard_mesh_create");
    SHARD_READ_OPTIONS(shard_mesh_options, SHARD_MESH_OPTIONS_INIT, options, given);
    if (!shard_world())
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "shard_mesh_create: shard_init was not called, or failed");
    shard_mesh *mesh = shard_calloc(1, sizeof *mesh);
    if (make_groups(mesh, &options) != SHARD_OK) {
        shard_mesh_destroy(mesh);
        return NULL;
    }
    for (int axis = 0; axis < mesh->grid.axes; axis++)
        if (!mesh->along[axis]->is_world) /* whose replicas are this rank alone */
            mesh->along[axis]->replicas = replicas_of(mesh, axis);
    return mesh;
}

static void free_group(shard_group *group)
{
    if (group && !group->is_world)
        shard_group_free(group);
}

void shard_mesh_destroy(shard_mesh *mesh)
{
    if (!mesh)
        return;
    for (int axis = 0; axis < mesh->grid.axes; axis++) {
        free_group(mesh->along[axis]);
        free_group(mesh->replicas[axis]);
    }
    free(mesh);
}

/* -1 with the error set. */
static int axis_of(const shard_mesh *mesh, const char *function, const char *axis)
{
    char text[TEXT_BYTES];
    if (!mesh || !axis)
        return shard_null_argument(function, mesh ? "axis" : "mesh"), -1;
    int found = find_axis(&mesh->grid, axis);
    if (found < 0)
        shard_error(SHARD_ERROR_ARGUMENT, "%s: the mesh has no axis \"%s\"; it is %s", function, axis,
                    grid_text(&mesh->grid, text));
    return found;
}

shard_group *shard_mesh_group(const shard_mesh *mesh, const char *axis)
{
    int found = axis_of(mesh, "shard_mesh_group", axis);
    return found >= 0 ? mesh->along[found] : NULL;
}

shard_group *shard_mesh_replica_group(const shard_mesh *mesh, const char *axis)
{
    int found = axis_of(mesh, "shard_mesh_replica_group", axis);
    return found >= 0 ? replicas_of(mesh, found) : NULL;
}

int shard_mesh_coordinate(const shard_mesh *mesh, const char *axis)
{
    int found = axis_of(mesh, "shard_mesh_coordinate", axis);
    return found >= 0 ? mesh->coordinate[found] : -1;
}

shard_group *shard_mesh_model_group(const shard_mesh *mesh)
{
    return mesh ? shard_mesh_group(mesh, "model") : NULL;
}

shard_group *shard_mesh_data_group(const shard_mesh *mesh)
{
    return mesh ? shard_mesh_group(mesh, "data") : NULL;
}
