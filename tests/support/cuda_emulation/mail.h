/*
 * Mail between the processes of an emulated communicator: a control block that all
 * map, and for each letter a memory file of its sender's. They are found through
 * /proc/PID/fd, so that nothing is left behind whatever a process dies of, and a dead
 * sender's letters are lost with it.
 */
#ifndef CUDA_EMULATION_MAIL_H
#define CUDA_EMULATION_MAIL_H

#include <stddef.h>
#include <stdint.h>

#include <functional>
#include <string>
#include <vector>

namespace emulation {

enum { MOST_MEMBERS = 64, MOST_LETTERS = 64 /* of a sender that have not been read */, EVERYBODY = -1 };

struct Control;

class Mail {
public:
    /* A new control block, in which `members` will meet; the path by which others join. */
    static std::string create(int members);
    /* Joins as that member, with a text that all will see. NULL if there is no such block. */
    static Mail *join(const std::string &path, int members, int self, const std::string &text);
    ~Mail();

    /* The texts of all members, once all have joined; empty before. */
    std::vector<std::string> texts() const;
    /* Sends to a member or to EVERYBODY (this member too); false while too many are unread. */
    bool send(int to, uint64_t number, const std::string &head, const void *data, size_t bytes);
    /* Reads that member's letter of the number to this one, or to everybody; false if it is not there. */
    bool read(int from, bool to_everybody, uint64_t number, std::string &head, std::string &data);
    /* Whether all that was sent has been read. */
    bool all_read();
    /* A member whose process has ended without destroying its Mail; -1: none. */
    int dead_member();

private:
    Control *control = nullptr;
    int self = 0;
    int files[MOST_LETTERS];     /* of own letters; -1 */
    int processes[MOST_MEMBERS]; /* pidfds of the others; -1: not opened yet */
};

} // namespace emulation

#endif
