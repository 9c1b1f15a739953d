/* Meshes: the world's ranks in a grid of data x model. */
#include "distributed/distributed.h"

#include "comm/function.h"

#include <stdlib.h>

struct shard_mesh {
    shard_group *model, *data;
};

/* What a rank asks for. */
typedef struct grid {
    int32_t data, model;
} grid;

static shard_status check_grid(grid wanted, int asked_data, int size)
{
    if (asked_data == 0 && wanted.model > 0 && size % wanted.model != 0)
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_mesh_create: model parallel groups of %d do not divide the %d ranks",
                           wanted.model, size);
    if (wanted.model < 1 || wanted.data < 1 || (int64_t)wanted.model * wanted.data != size)
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_mesh_create: %d data x %d model parallel is not the world's size, %d",
                           wanted.data, wanted.model, size);
    return SHARD_OK;
}

/* Groups of different grids would compute with each other. The same answer on every rank. */
static shard_status compare_grids(const grid *grids, int size)
{
    for (int rank = 1; rank < size; rank++)
        if (grids[rank].model != grids[0].model || grids[rank].data != grids[0].data)
            return shard_error(SHARD_ERROR_MISMATCH,
                               "shard_mesh_create: rank %d asks for %d data x %d model parallel, rank 0 for %d x %d", rank,
                               grids[rank].data, grids[rank].model, grids[0].data, grids[0].model);
    return SHARD_OK;
}

/* Joint over the world. */
static shard_status make_groups(shard_mesh *mesh, grid wanted, int asked_data)
{
    shard_group *world = shard_world();
    int size = shard_group_size(world), rank = shard_group_rank(world), model = wanted.model;
    grid *grids = shard_calloc((size_t)size, sizeof *grids);
    shard_status status = mesh && grids ? check_grid(wanted, asked_data, size) : shard_last_status();
    status = status == SHARD_OK ? shard_group_exchange(world, &wanted, sizeof wanted, grids) : shard_group_fail(world);
    if (status == SHARD_OK)
        status = compare_grids(grids, size);
    if (status == SHARD_OK) {
        mesh->model = shard_group_split(world, rank / model);
        mesh->data = mesh->model ? shard_group_split(world, rank % model) : NULL;
        status = shard_last_status();
    }
    free(grids);
    return status;
}

shard_mesh *shard_mesh_create_with(shard_mesh_options options)
{
    SHARD_FUNCTION("shard_mesh_create");
    if (!shard_world())
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "shard_mesh_create: shard_init was not called, or failed");
    grid wanted = {.data = options.data, .model = options.model ? options.model : 1};
    if (wanted.data == 0 && wanted.model > 0)
        wanted.data = shard_group_size(shard_world()) / wanted.model;
    shard_mesh *mesh = shard_calloc(1, sizeof *mesh);
    if (make_groups(mesh, wanted, options.data) != SHARD_OK) {
        shard_mesh_destroy(mesh);
        return NULL;
    }
    mesh->model->replicas = mesh->data;
    mesh->data->replicas = mesh->model;
    return mesh;
}

void shard_mesh_destroy(shard_mesh *mesh)
{
    if (!mesh)
        return;
    shard_group_destroy(mesh->model);
    shard_group_destroy(mesh->data);
    free(mesh);
}

shard_group *shard_mesh_model_group(const shard_mesh *mesh)
{
    return mesh ? mesh->model : NULL;
}

shard_group *shard_mesh_data_group(const shard_mesh *mesh)
{
    return mesh ? mesh->data : NULL;
}
