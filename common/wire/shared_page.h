// SPDX-License-Identifier: Apache-2.0
// The two shared pages of a session, as both sides read them. Page 1 is written by the daemon and sealed
// against the client. Page 2 is written by the client and never trusted. Every word has a single writer;
// there is no lock. docs/protocol.md describes the same in prose.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace pinfeed {

inline constexpr uint32_t kProtocolVersion = 1;
inline constexpr uint64_t kPublishPageMagic = 0x3130424655504650;  // "PFPUFB01" read as little-endian bytes
inline constexpr uint32_t kMaxSlots = 64;  // slots of an arena, and the length of the descriptor ring
inline constexpr uint32_t kMinSlots = 3;   // one filling, one ready, one in use
inline constexpr uint32_t kMaxErrorBytes = 2048;

// The state of a session, in PublishPage::state. Only the daemon writes it. Batches already published stay
// valid in every state except kEvicted.
enum class FeedState : uint32_t {
  kRunning = 1,
  kDraining = 2,  // the daemon is stopping: nothing more is published; consume the rest, then reconnect
                  // elsewhere or later
  kEnded = 3,     // the last requested epoch is fully published
  kFailed = 4,    // nothing more is published; error_code and error_text say why
  kEvicted = 5,   // nothing more may be taken: the daemon reclaimed the other batches, or the client sent
                  // kLeave. Taken batches stay valid; error_code and error_text say why
};

// BatchDescriptor::flags
inline constexpr uint32_t kFlagLastOfEpoch = 1U << 0;

// One published batch. A plain value, written before `published` is increased. An acquire load of `published`
// therefore makes it visible.
struct alignas(64) BatchDescriptor {
  uint64_t sequence;     // 0, 1, 2, ... without gaps per session; stored in ring[sequence % kMaxSlots]
  uint64_t generation;   // of the slot; write it to the slot's release word to release the batch
  uint64_t epoch;        // 0-based
  uint64_t batch_index;  // 0-based within the epoch, in this rank's sequence
  uint64_t position;     // global sample position in the epoch just after this batch, where a cursor
                         // resumes
  uint32_t slot;         // index into the arena: the batch starts at slot * slot_stride
  uint32_t samples;      // valid samples, <= batch_size; 0 when every sample of the batch was skipped as bad
  uint32_t skipped;      // bad samples skipped in this batch
  uint32_t flags;
  uint32_t zeroed;  // bad samples that are zeros in this batch
};
static_assert(sizeof(BatchDescriptor) == 64);

struct PublishPage {
  uint64_t magic;
  uint32_t version;
  uint32_t slot_count;
  std::atomic<uint32_t> state;  // FeedState
  // 1 while the daemon waits for a release. To release a slot, store the release word, then load this, both
  // sequentially consistent. If it is 1, ring the doorbell.
  std::atomic<uint32_t> starved;
  std::atomic<uint32_t> wake;  // futex word: changes with every publish and every state change
  uint32_t error_code;         // a Code, valid once state is kFailed or kEvicted
  uint32_t error_bytes;        // length of error_text, <= kMaxErrorBytes; valid like error_code
  uint32_t reserved;
  std::atomic<uint64_t> published;  // batches published so far; sequence numbers below it are valid
  // Batches with this sequence number or a later one must not be taken. kUnlimited until shortly after the
  // session is evicted.
  std::atomic<uint64_t> limit;
  alignas(64) char error_text[kMaxErrorBytes];  // UTF-8, no terminator
  alignas(64) BatchDescriptor ring[kMaxSlots];
};
inline constexpr size_t kPublishPageBytes = 8192;
inline constexpr uint64_t kUnlimited = UINT64_MAX;
static_assert(sizeof(PublishPage) <= kPublishPageBytes);

// One release word per cache line, so that writes to two slots never share a line.
struct alignas(64) ReleaseWord {
  std::atomic<uint64_t> generation;
};

struct ReleasePage {
  ReleaseWord slots[kMaxSlots];
  // Statistics reported by the client. A client that lies here only falsifies its own statistics, and its own
  // batches once it is evicted.
  // Batches taken. Store it, then load `state`, both sequentially consistent. If the state is kEvicted, wait
  // for `limit`, which says whether the batch was taken.
  alignas(64) std::atomic<uint64_t> taken;
  std::atomic<uint64_t> wait_ns;  // time the trainer spent waiting in next(), in nanoseconds
  // CLOCK_MONOTONIC time at which the current wait began, 0 when not waiting. A batcher gives a batch only to
  // a session that waits: store it, then load `starved`, both sequentially consistent, as after a release.
  std::atomic<uint64_t> waiting_since_ns;
  std::atomic<uint64_t> copied;  // batches that the trainer got as a copy because it held too many slots
};
inline constexpr size_t kReleasePageBytes = 8192;
static_assert(sizeof(ReleasePage) <= kReleasePageBytes);

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

// The lifeline: a SOCK_SEQPACKET Unix socket, on which one send is one frame. All integers are in host byte
// order, because both sides are on the same host.
inline constexpr uint64_t kLifelineMagic = 0x3130464c46504650;
inline constexpr size_t kTokenBytes = 32;

enum class LifelineKind : uint32_t {
  kHello = 1,  // client -> daemon, once: token
  // daemon -> client, once: code 0 with kLifelineFds... descriptors, or a code and a text without descriptors
  kWelcome = 2,
  // client -> daemon, at most once: every mapping is gone, the arena may be reclaimed
  kBye = 3,
  // client -> daemon, at most once: the client takes no further batch and keeps those it has until a bye.
  // Answered by kEvicted and its limit in page 1
  kLeave = 4,
  kProduce = 5,  // producer -> daemon, once, in place of kHello: its session's token, and its lane in `code`
  kTask = 6,     // daemon -> producer: fill a batch
  // producer -> daemon: the batch is filled, or cannot be; the producer no longer writes to its slot
  kTaskDone = 7,
  // producer -> daemon, at most once a task: the batch does not fit into its slot. Answered by one of the
  // same kind and task: code 0 with a descriptor, or a code and a text
  kMemory = 8,
  kJoin = 9,      // a batcher's client or consumer -> daemon, once, in place of kHello: token
  kRequest = 10,  // client -> daemon: `slot` of its memory holds a request of `bytes` bytes
  kCancel = 11,   // client -> daemon: no answer for `slot` is wanted. It is answered all the same
  // daemon -> client: the request of `slot` has ended, with `bytes` bytes of answer or an error; the slot is
  // the client's again. To a consumer: the result of its kTake or kAnswer, with a number in `bytes`
  kAnswered = 12,
  kTake = 13,    // consumer -> daemon: it has taken a batch. Answered with how many requests wait for answers
  kAnswer = 14,  // consumer -> daemon: its memory holds `bytes` answers to a batch. Answered
  // daemon -> client that decodes images and can share them: another member of its group is on its GPU.
  // Brings the socket on which that fetches its batches
  kReader = 15,
};

// A member that fetches decoded batches: its first one.
struct ReaderStart {
  uint64_t epoch;
  uint64_t batch_index;
  uint64_t reserved[2];
};

// What a batcher's client or consumer and the daemon tell each other.
struct BatcherMessage {
  uint64_t epoch;  // kTake, kAnswer: the batch's
  uint64_t batch_index;
  uint64_t timeout_us;  // kRequest: until its deadline; 0: a day
  uint32_t slot;
  uint32_t bytes;
};

// A batch to fill. Its slot holds what the tensor "sample_id" says, and nothing else yet.
struct ProducerTask {
  uint64_t task;  // names the task; never 0, never reused on a lifeline
  uint64_t epoch;
  uint64_t batch_index;  // within the epoch
  uint32_t slot;
  uint32_t samples;  // at least 1
};

// Memory of its own for the batch of a task.
struct MemoryRequest {
  uint64_t task;
  uint64_t bytes;
  uint64_t reserved[2];
};

struct LifelineFrame {
  uint64_t magic;
  uint32_t kind;  // LifelineKind
  uint32_t code;  // a Code, in kWelcome, kTaskDone, the daemon's kMemory and kAnswered; in kProduce the lane
  union {
    uint8_t token[kTokenBytes];
    ProducerTask produce;    // in kTask; in kTaskDone only `task` counts
    MemoryRequest memory;    // in kMemory
    BatcherMessage batcher;  // from kRequest to kAnswer
    ReaderStart reader;      // in kReader
  };
  char text[208];  // of an error: UTF-8, NUL-padded
};
static_assert(sizeof(LifelineFrame) == 256 && sizeof(ProducerTask) == kTokenBytes &&
              sizeof(MemoryRequest) == kTokenBytes && sizeof(BatcherMessage) == kTokenBytes &&
              sizeof(ReaderStart) == kTokenBytes);

// A frame of zeros, but for its magic and kind.
inline LifelineFrame MakeLifelineFrame(LifelineKind kind) {
  LifelineFrame frame{};
  frame.magic = kLifelineMagic;
  frame.kind = static_cast<uint32_t>(kind);
  return frame;
}

// The descriptors in kWelcome. A session's: publish page memfd, release page memfd, doorbell eventfd and, on
// the host backend, the arena memfd; behind it, with resident samples, their device memory, or the socket of
// a member that another one decodes for. A producer's: the arena memfd. A batcher's client's or consumer's:
// its memory.
inline constexpr size_t kLifelineFdsHost = 4;
inline constexpr size_t kLifelineFdsResident = 5;
inline constexpr size_t kLifelineFdsDevice = 3;
inline constexpr size_t kLifelineFdsProducer = 1;

}  // namespace pinfeed
