# shellcheck shell=sh
# For test scripts: find_mpirun KIND PROBE sets $run to the mpirun of one MPI, openmpi or
# mpich, and readies it for tests; PROBE prints MPI's number of ranks. Where there is none
# that works: exit code 77, which is "skipped".
skip() {
    echo "skipped: $1"
    exit 77
}

find_mpirun() {
    [ -f "$SHARD_PLUGIN_PATH/libshard-mpi-$1.so" ] || skip "built without $1"
    run=$(command -v "mpirun.$1") || skip "no mpirun.$1"
    # Several ranks a core, as root too, and no complaint about a container's limits.
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_orte_abort_print_stack=0
    [ "$("$run" -n 2 "$2" | sort -u)" != 1 ] ||
        skip "$run -n 2 starts two programs that MPI does not connect (MPICH of Ubuntu 24.04: Launchpad bug 2072338)"
}
