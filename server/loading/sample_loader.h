// SPDX-License-Identifier: Apache-2.0
// Stage 3 of a batch: one sample from the dataset, decoded and transformed, written into its place
// in the slot.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/histogram.h"
#include "common/base/result.h"
#include "common/spec/feed_spec.h"
#include "server/cache/cached_head.h"
#include "server/dataset/dataset.h"
#include "server/loading/sample_places.h"
#include "server/trace/tracer.h"
#include "server/transform/deferred_pixel_ops.h"

namespace pinfeed {

class ImageSource;

// Behind a field's name: the tensors that clients use and do not show.
inline constexpr char kMarkSuffix[] = ".mark";        // of an image: an ImageMark
inline constexpr char kExtentsSuffix[] = ".extents";  // of a packed field: where each sample's rows lie

// What the random transforms of one sample depend on; nothing else does, so the result is independent of
// threads and restarts.
struct SampleKey {
  uint64_t id = 0;  // index in the dataset
  uint64_t epoch = 0;
};

// Time one sample took, in nanoseconds; summed up for the stall attribution.
struct SampleTimes {
  uint64_t read_ns = 0;        // waiting for the source
  uint64_t decode_ns = 0;      // decode and transforms
  WorkSpans* spans = nullptr;  // gets them one by one too, while somebody traces
  bool fetched = false;        // a reader has read the sample, and told of it: copying its bytes is no read

  void Read(uint64_t begin_ns, uint64_t end_ns) {
    if (fetched) return;
    read_ns += end_ns - begin_ns;
    if (spans != nullptr) spans->Add(SpanKind::kRead, begin_ns, end_ns);
  }
  void Decode(uint64_t begin_ns, uint64_t end_ns) {
    decode_ns += end_ns - begin_ns;
    if (spans != nullptr) spans->Add(SpanKind::kDecode, begin_ns, end_ns);
  }
};

// What the samples of one thread took, each. In cache lines of their own: the threads write at once.
struct alignas(64) SampleDurations {
  DurationHistogram read;
  DurationHistogram decode;  // of samples that have an image
  void Record(const SampleTimes& times) {
    if (!times.fetched) read.Record(times.read_ns);
    if (times.decode_ns != 0) decode.Record(times.decode_ns);
  }
};

struct FeedShare;

// A worker thread's reusable buffers (encoded bytes, decoded image, resize weights and rows) and its
// statistics. One a thread; grows to the largest sample seen, but gives back what one made larger than 64
// MiB. Threads: all may read `durations` and `sample`, the rest is the one thread's.
class SampleScratch {
 public:
  SampleScratch();
  ~SampleScratch();

  struct Buffers;
  Buffers& buffers() { return *buffers_; }
  // Gives the memory of the buffers back.
  void Trim();
  SampleDurations& durations() { return durations_; }
  // The sample that is being loaded, or was loaded last. Reports of a thread that hangs name it.
  void Begin(uint64_t sample) { sample_.store(sample, std::memory_order_relaxed); }
  uint64_t sample() const { return sample_.load(std::memory_order_relaxed); }
  // The feed that the thread loads for; null: none. The caller keeps it alive meanwhile.
  void SetShare(FeedShare* share) { share_ = share; }
  FeedShare* share() const { return share_; }

 private:
  std::unique_ptr<Buffers> buffers_;
  SampleDurations durations_;
  std::atomic<uint64_t> sample_{0};
  FeedShare* share_ = nullptr;
};

// Where the pointwise transforms, mirroring and layout of images are done: by the workers, or on the
// trainer's GPU. In the second case the slot gets uint8 pixels, and where needed a byte a sample that says
// what else to do.
enum class PixelOpsAt { kWorker, kClient };

// Purpose: loads one sample of a feed into its places. Owns: a share of the dataset, the compiled transforms.
// Immutable. Threads: Load may be called from any thread at once, each with its own scratch. Errors: a bad
// sample is a Status that names the sample (Dataset::Describe) and the reason; the places then hold
// unspecified bytes. So is one for which there is not the memory: kResourceExhausted.
class SampleLoader {
 public:
  // Checks the transforms against the dataset's fields; kInvalidArgument lists every fault, one a line
  // ("transforms[1] center_crop: ..."). The cache outlives the loader.
  static Result<std::unique_ptr<SampleLoader>> Create(std::shared_ptr<const Dataset> dataset,
                                                      const FeedSpec& spec,
                                                      PixelOpsAt tail_at = PixelOpsAt::kWorker,
                                                      const CacheAccess& cache = {});
  ~SampleLoader();

  // The tensors of one sample, in output order: the dataset's fields after the transforms; "<field>_length"
  // of each padded one; "sample_id" and "valid" if the spec asks for them. Behind them what clients use and
  // do not show: the mark of PixelOpsAt::kClient (an ImageMark) if there is one, "<field>.extents" of each
  // packed field.
  const std::vector<TensorSpec>& outputs() const { return outputs_; }
  const Dataset& dataset() const { return *dataset_; }
  // Whether samples only have to be read, straight into their places: nothing is decoded or transformed.
  bool only_reads() const;
  // Null: the cache does not serve this feed, since there is none or it decodes nothing.
  CachedHead* cached_head() const;
  // Null: no field is an encoded image.
  const ImageSource* images() const;
  // Of PixelOpsAt::kClient, when there is something left to do to the images.
  const std::optional<DeferredPixelOps>& tail() const;

  // Precondition: places[t].size() == outputs()[t].SampleBytes() for every t that is not packed; key.id <
  // samples of the dataset.
  Status Load(const SampleKey& key, const SamplePlaces& places, SampleScratch& scratch,
              SampleTimes& times) const {
    return LoadFrom(*dataset_, key, places, scratch, times);
  }
  // The same from `source`, which has the fields of dataset() and this one of its samples.
  Status LoadFrom(const Dataset& source, const SampleKey& key, const SamplePlaces& places,
                  SampleScratch& scratch, SampleTimes& times) const;

  // Has the storage read the samples [id, id + count) ahead: see Dataset::Prefetch. Precondition: the dataset
  // has them.
  Prefetched Prefetch(uint64_t id, uint64_t count) const;

  // Fills the places of a bad sample as on_bad_sample = zero wants it: all zeros, "valid" too, whichever
  // field could not be read; only "sample_id" tells which sample it is.
  void WriteZeros(const SampleKey& key, const SamplePlaces& places) const;

 private:
  struct Program;  // the compiled transforms
  // The dataset's fields. Throws std::bad_alloc.
  Status LoadFields(const Dataset& source, const SampleKey& key, const SamplePlaces& places,
                    SampleScratch& scratch, SampleTimes& times) const;
  SampleLoader(std::shared_ptr<const Dataset> dataset, std::unique_ptr<Program> program,
               std::vector<TensorSpec> outputs);
  std::shared_ptr<const Dataset> dataset_;
  std::unique_ptr<Program> program_;
  std::vector<TensorSpec> outputs_;
};

}  // namespace pinfeed
