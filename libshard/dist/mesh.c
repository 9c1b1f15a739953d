/* Meshes: the world's ranks in a grid of data x model. */
#include "dist/dist.h"

#include <stdlib.h>

struct shard_mesh {
    shard_group *model, *data;
};

static shard_group *make_group(int first, int stride, int size)
{
    int *members = shard_calloc((size_t)size, sizeof *members);
    if (!members)
        return NULL;
    for (int i = 0; i < size; i++)
        members[i] = first + i * stride;
    shard_group *group = shard_group_create(shard_world(), members, size);
    free(members);
    return group;
}

shard_mesh *shard_mesh_create_with(shard_mesh_options options)
{
    if (!shard_world())
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "shard_mesh_create: shard_init was not called, or failed");
    int size = shard_group_size(shard_world()), rank = shard_group_rank(shard_world());
    int model = options.model ? options.model : 1;
    int data = options.data ? options.data : (model > 0 ? size / model : 0);
    if (model < 1 || data < 1 || (int64_t)model * data != size) {
        shard_error(SHARD_ERROR_ARGUMENT, "shard_mesh_create: %d data x %d model parallel is not the world's size, %d", data, model,
                    size);
        shard_group_fail(shard_world());
        return NULL;
    }
    shard_mesh *mesh = shard_calloc(1, sizeof *mesh);
    if (!mesh)
        return NULL;
    mesh->model = make_group(rank / model * model, 1, model);
    mesh->data = make_group(rank % model, model, data);
    if (!mesh->model || !mesh->data) {
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
