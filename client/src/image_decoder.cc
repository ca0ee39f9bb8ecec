// SPDX-License-Identifier: Apache-2.0
#include "client/src/image_decoder.h"

#include <algorithm>
#include <array>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "client/src/convert_kernel.h"
#include "client/src/decode_planes.h"
#include "client/src/image_plan_check.h"
#include "client/src/read_jpeg_frame.h"
#include "common/base/random.h"
#include "common/cuda/device_memory.h"
#include "common/cuda/stream.h"
#include "common/os/memfd.h"

namespace pinfeed {
namespace {

// What the GPU and the host pass each other, in page-locked memory. Whole pages: registering takes no less.
struct alignas(4096) HostPages {
  DecodedImage images[GpuImageDecoder::kMaxImages];
  uint32_t unwritten[GpuImageDecoder::kMaxImages];  // written by the GPU
};

// A filler of the engine's memory that no picture holds in 8 pixels of a row, and that is not 0.
uint64_t MakePoison() {
  std::array<std::byte, 8> bytes = RandomBytes<std::array<std::byte, 8>>();
  uint64_t poison = 0;
  for (const std::byte byte : bytes) poison = poison << 8 | static_cast<uint64_t>(byte);
  return poison | 1;
}

}  // namespace

// Purpose: implements GpuImageDecoder. A chunk is the images that fit into the planes at once.
class GpuImageDecoder::Impl {
 public:
  Impl(std::shared_ptr<const CudaDevice> device, const Options& options, const NvJpeg& api)
      : device_(std::move(device)), driver_(device_->driver()), options_(options), api_(api) {}
  ~Impl();
  Status Init();
  Status Decode(std::span<const EncodedImage> images, std::span<Status> failures);
  uint64_t decoded_again() const { return decoded_again_; }

 private:
  // One image of a chunk that the kernel makes; page_->images has the rest.
  struct Made {
    size_t index = 0;  // in Decode's spans
    PlaneLayout planes = {};
    bool on_engine = false;
    bool again = false;  // to be decoded without the engines
  };

  bool AddImage(const EncodedImage& image, size_t index, Status& failure);
  Status CopyPixels(const EncodedImage& image, Status& failure);
  Status RunChunk(std::span<const EncodedImage> images, std::span<Status> failures);
  void RunEngines(std::span<const EncodedImage> images);
  Status DecodeAgain(const EncodedImage& image, size_t made, Status& failure);
  Status TryAgain(const EncodedImage& image, const Made& made, Status& failure);
  Status Launch(size_t first, size_t count, bool check);
  Status Fill(uint64_t offset, uint64_t bytes, uint64_t value);
  Status Wait();
  nvjpeg::Image Outputs(const PlaneLayout& planes) const;
  nvjpeg::OutputFormat Format() const {
    return options_.engine_output == EngineOutput::kPlanes ? nvjpeg::OutputFormat::kYuv
                                                           : nvjpeg::OutputFormat::kRgbInterleaved;
  }
  std::string OnGpu(const std::string& what) const { return what + " on GPU " + device_->uuid(); }

  const std::shared_ptr<const CudaDevice> device_;
  const CudaDriver& driver_;
  const Options options_;
  const NvJpeg& api_;
  const uint64_t poison_ = MakePoison();
  std::shared_ptr<const ConvertKernel> kernel_;
  Mapping host_;  // shared memory: a private mapping would change below the GPU when the process forks
  HostPages* pages_ = nullptr;     // in host_
  HostRegistration registration_;  // of pages_
  DeviceMemory planes_;
  bool poisoned_ = false;  // all of planes_ holds the poison and nothing uses it; true between two chunks
  DeviceMemory images_;    // DecodedImage[kMaxImages]
  UniqueCudaStream stream_;
  UniqueCudaEvent done_;
  std::optional<nvjpeg::Decoder> engines_;  // there is one after Init
  std::optional<nvjpeg::Decoder> hybrid_;   // empty until an image needs it
  size_t batch_ = 0;                        // that the engines' state is prepared for

  // The chunk.
  std::array<Made, kMaxImages> made_;
  size_t count_ = 0;
  uint64_t used_ = 0;  // bytes of planes_
  uint64_t decoded_again_ = 0;
};

Status GpuImageDecoder::Impl::Init() {
  const CudaScope scope(*device_);
  RETURN_IF_ERROR(scope.status());
  Result<nvjpeg::Decoder> engines = nvjpeg::Decoder::Create(api_, nvjpeg::Backend::kHardware);
  if (!engines.ok())
    return engines.status().WithContext("decode images on GPU " + device_->uuid() + " (" + device_->name() +
                                        ")");
  engines_.emplace(*std::move(engines));
  ASSIGN_OR_RETURN(kernel_, ConvertKernel::For(device_));
  ASSIGN_OR_RETURN(const UniqueFd fd, CreateMemfd("pinfeed-decode", sizeof(HostPages)));
  ASSIGN_OR_RETURN(host_, Mapping::Map(fd.get(), sizeof(HostPages), Access::kReadWrite, true));
  pages_ = new (host_.data()) HostPages;
  ASSIGN_OR_RETURN(registration_, HostRegistration::Create(device_, pages_, sizeof *pages_));
  ASSIGN_OR_RETURN(planes_, DeviceMemory::Allocate(device_, kPlaneBytes));
  ASSIGN_OR_RETURN(images_, DeviceMemory::Allocate(device_, sizeof pages_->images));
  // Decoding should not queue up behind the trainer's kernels.
  int lowest = 0;
  int highest = 0;
  RETURN_IF_ERROR(CudaStatus(driver_.cuCtxGetStreamPriorityRange(&lowest, &highest),
                             OnGpu("get the priorities of streams")));
  CUstream stream = nullptr;
  RETURN_IF_ERROR(CudaStatus(driver_.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, highest),
                             OnGpu("create a stream")));
  stream_.reset({device_.get(), stream});
  CUevent event = nullptr;
  RETURN_IF_ERROR(CudaStatus(driver_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC),
                             OnGpu("create an event")));
  done_.reset({device_.get(), event});
  return OkStatus();
}

GpuImageDecoder::Impl::~Impl() {
  const CudaScope scope(*device_);
  engines_.reset();
  hybrid_.reset();
  planes_ = {};
  images_ = {};
  registration_ = {};
}

Status GpuImageDecoder::Impl::Decode(std::span<const EncodedImage> images, std::span<Status> failures) {
  PF_CHECK(images.size() <= kMaxImages && failures.size() == images.size(), "one status an image");
  const CudaScope scope(*device_);
  RETURN_IF_ERROR(scope.status());
  std::fill(failures.begin(), failures.end(), OkStatus());
  if (!std::exchange(poisoned_, false)) {
    RETURN_IF_ERROR(Fill(0, kPlaneBytes, poison_));
    RETURN_IF_ERROR(Wait());
  }
  for (size_t next = 0; next < images.size();) {
    count_ = 0;
    used_ = 0;
    Status done;
    while (done.ok() && next < images.size()) {
      const EncodedImage& image = images[next];
      if (image.plan.kind == static_cast<uint32_t>(ImagePlanKind::kPixels)) {
        done = CopyPixels(image, failures[next]);
        if (failures[next].ok()) {
          ++next;
          continue;
        }
      }
      if (!AddImage(image, next, failures[next])) break;
      ++next;
    }
    if (done.ok()) done = RunChunk(images, failures);
    if (!done.ok()) {
      // What was queued must not outlive the call. Fails only with a broken context, in which nothing runs.
      (void)driver_.cuStreamSynchronize(stream_.get().native);
      return done;
    }
  }
  poisoned_ = true;
  return OkStatus();
}

// Takes an image into the chunk. One that cannot be decoded becomes zeros. Returns false if the planes are
// full.
bool GpuImageDecoder::Impl::AddImage(const EncodedImage& image, size_t index, Status& failure) {
  Made made{.index = index};
  DecodedImage job{};
  job.out = reinterpret_cast<uint8_t*>(image.out);  // NOLINT(performance-no-int-to-ptr)
  const auto try_jpeg = [&]() -> Status {
    ASSIGN_OR_RETURN(const JpegFrame frame, ReadJpegFrame(api_, *engines_, image.bytes));
    RETURN_IF_ERROR(CheckJpegFrame(image.plan, frame));
    made.planes = PlanesOf(frame, options_.engine_output);
    if (made.planes.bytes > kPlaneBytes)
      return ResourceExhausted("a JPEG file of " + std::to_string(frame.width) + " x " +
                               std::to_string(frame.height) + " pixels is too large for the GPU's decoder");
    Describe(image.plan, frame, made.planes, job);
    int unsupported = 0;
    RETURN_IF_ERROR(
        ToStatus(api_.nvjpegDecodeBatchedSupported(engines_->handle(), engines_->bitstream(), &unsupported),
                 "ask whether the GPU's engines decode a JPEG file"));
    made.on_engine = unsupported == 0;
    made.again = !made.on_engine;
    return OkStatus();
  };
  if (failure.ok()) failure = CheckImagePlan(image.plan, options_.height, options_.width);
  if (failure.ok() && image.plan.kind == static_cast<uint32_t>(ImagePlanKind::kJpeg)) failure = try_jpeg();
  if (!failure.ok()) {
    made = Made{.index = index};
    job.planes = 0;
  }
  if (made.planes.bytes > kPlaneBytes - used_) return false;
  made.planes.offset = used_;
  used_ += made.planes.bytes;
  for (size_t p = 0; p < made.planes.planes; ++p) job.plane[p] = Outputs(made.planes).channel[p];
  pages_->images[count_] = job;
  pages_->unwritten[count_] = 0;
  made_[count_++] = made;
  return true;
}

// Copies pixels that the daemon decoded.
Status GpuImageDecoder::Impl::CopyPixels(const EncodedImage& image, Status& failure) {
  failure = CheckImagePlan(image.plan, options_.height, options_.width);
  const uint64_t bytes = uint64_t{options_.height} * options_.width * options_.channels;
  if (failure.ok() && image.bytes.size() != bytes)
    failure = DataLoss("the daemon's pixels of an image have " + std::to_string(image.bytes.size()) +
                       " bytes instead of " + std::to_string(bytes));
  if (!failure.ok()) return OkStatus();
  return CudaStatus(driver_.cuMemcpyHtoDAsync(image.out, image.bytes.data(), bytes, stream_.get().native),
                    OnGpu("copy pixels to their place"));
}

Status GpuImageDecoder::Impl::RunChunk(std::span<const EncodedImage> images, std::span<Status> failures) {
  RunEngines(images);
  RETURN_IF_ERROR(Launch(0, count_, true));
  RETURN_IF_ERROR(Fill(0, used_, poison_));
  RETURN_IF_ERROR(Wait());
  for (size_t i = 0; i < count_; ++i) {
    const size_t index = made_[i].index;
    if (made_[i].again || pages_->unwritten[i] != 0)
      RETURN_IF_ERROR(DecodeAgain(images[index], i, failures[index]));
  }
  return OkStatus();
}

// Decodes what the engines can decode. They do so at once, whatever the stream still has to do: the planes
// are ready for it. If they refuse, the images' planes keep the poison.
void GpuImageDecoder::Impl::RunEngines(std::span<const EncodedImage> images) {
  const unsigned char* data[kMaxImages];
  size_t bytes[kMaxImages];
  nvjpeg::Image outputs[kMaxImages];
  size_t count = 0;
  for (size_t i = 0; i < count_; ++i) {
    if (!made_[i].on_engine) continue;
    const std::span<const std::byte> file = images[made_[i].index].bytes;
    data[count] = reinterpret_cast<const unsigned char*>(file.data());
    bytes[count] = file.size();
    outputs[count++] = Outputs(made_[i].planes);
  }
  if (count == 0) return;
  nvjpeg::ResultCode result = nvjpeg::ResultCode::kSuccess;
  if (batch_ != count)
    result = api_.nvjpegDecodeBatchedInitialize(engines_->handle(), engines_->state(),
                                                static_cast<int>(count), 1, Format());
  batch_ = result == nvjpeg::ResultCode::kSuccess ? count : 0;
  if (batch_ != 0)
    result = api_.nvjpegDecodeBatched(engines_->handle(), engines_->state(), data, bytes, outputs,
                                      stream_.get().native);
  if (result == nvjpeg::ResultCode::kSuccess) return;
  batch_ = 0;
  for (size_t i = 0; i < count_; ++i) made_[i].again |= made_[i].on_engine;
}

// Decodes image number `made` of the chunk without the engines. Precondition: its planes hold the poison, as
// they do afterwards.
Status GpuImageDecoder::Impl::DecodeAgain(const EncodedImage& image, size_t made, Status& failure) {
  ++decoded_again_;
  const PlaneLayout& planes = made_[made].planes;
  RETURN_IF_ERROR(TryAgain(image, made_[made], failure));
  if (!failure.ok()) pages_->images[made].planes = 0;
  RETURN_IF_ERROR(Launch(made, 1, false));
  RETURN_IF_ERROR(Fill(planes.offset, planes.bytes, poison_));
  return Wait();
}

Status GpuImageDecoder::Impl::TryAgain(const EncodedImage& image, const Made& made, Status& failure) {
  if (!hybrid_) {
    Result<nvjpeg::Decoder> hybrid = nvjpeg::Decoder::Create(api_, nvjpeg::Backend::kHybrid);
    if (!hybrid.ok()) return hybrid.status();  // which says nothing of the image
    hybrid_.emplace(*std::move(hybrid));
  }
  // What a damaged file leaves out is the same each time.
  RETURN_IF_ERROR(Fill(made.planes.offset, made.planes.bytes, 0));
  nvjpeg::Image output = Outputs(made.planes);
  Status decoded = ToStatus(api_.nvjpegDecode(hybrid_->handle(), hybrid_->state(),
                                              reinterpret_cast<const unsigned char*>(image.bytes.data()),
                                              image.bytes.size(), Format(), &output, stream_.get().native),
                            OnGpu("decode a JPEG file of " + std::to_string(image.bytes.size()) + " bytes"));
  if (decoded.code() == Code::kResourceExhausted) return decoded;  // nor does a GPU without memory
  failure = std::move(decoded);
  return OkStatus();
}

// Queues the kernel for `count` images of the chunk.
Status GpuImageDecoder::Impl::Launch(size_t first, size_t count, bool check) {
  if (count == 0) return OkStatus();
  const CUdeviceptr images = images_.address() + first * sizeof(DecodedImage);
  RETURN_IF_ERROR(CudaStatus(driver_.cuMemcpyHtoDAsync(images, &pages_->images[first],
                                                       count * sizeof(DecodedImage), stream_.get().native),
                             OnGpu("describe images")));
  DecodeImages work{};
  work.images = reinterpret_cast<const DecodedImage*>(images);  // NOLINT(performance-no-int-to-ptr)
  work.unwritten = reinterpret_cast<uint32_t*>(                 // NOLINT(performance-no-int-to-ptr)
      registration_.device_address() + offsetof(HostPages, unwritten));
  work.poison = check ? poison_ : 0;
  work.count = static_cast<uint32_t>(count);
  work.height = options_.height;
  work.width = options_.width;
  work.channels = options_.channels;
  return kernel_->Launch(work, stream_.get().native);
}

Status GpuImageDecoder::Impl::Fill(uint64_t offset, uint64_t bytes, uint64_t value) {
  FillWords work{};
  work.out = reinterpret_cast<uint64_t*>(planes_.address() + offset);  // NOLINT(performance-no-int-to-ptr)
  work.words = bytes / sizeof(uint64_t);
  work.value = value;
  return kernel_->Launch(work, stream_.get().native);
}

// Until the stream has done everything, without using the processor meanwhile.
Status GpuImageDecoder::Impl::Wait() {
  const std::string what = OnGpu("decode images");
  RETURN_IF_ERROR(CudaStatus(driver_.cuEventRecord(done_.get().native, stream_.get().native), what));
  return CudaStatus(driver_.cuEventSynchronize(done_.get().native), what);
}

nvjpeg::Image GpuImageDecoder::Impl::Outputs(const PlaneLayout& planes) const {
  nvjpeg::Image image{};
  for (uint32_t p = 0; p < planes.planes; ++p) {
    image.channel[p] = reinterpret_cast<unsigned char*>(  // NOLINT(performance-no-int-to-ptr)
        planes_.address() + planes.offset + planes.start[p]);
    image.pitch[p] = planes.pitch[p];
  }
  return image;
}

GpuImageDecoder::GpuImageDecoder(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GpuImageDecoder::~GpuImageDecoder() = default;

Result<std::unique_ptr<GpuImageDecoder>> GpuImageDecoder::Create(std::shared_ptr<const CudaDevice> device,
                                                                 const Options& options) {
  ASSIGN_OR_RETURN(const NvJpeg* const nvjpeg, NvJpeg::Load());
  return Create(std::move(device), options, *nvjpeg);
}

Result<std::unique_ptr<GpuImageDecoder>> GpuImageDecoder::Create(std::shared_ptr<const CudaDevice> device,
                                                                 const Options& options,
                                                                 const NvJpeg& nvjpeg) {
  auto impl = std::make_unique<Impl>(std::move(device), options, nvjpeg);
  RETURN_IF_ERROR(impl->Init());
  return std::unique_ptr<GpuImageDecoder>(new GpuImageDecoder(std::move(impl)));
}

Status GpuImageDecoder::Decode(std::span<const EncodedImage> images, std::span<Status> failures) {
  return impl_->Decode(images, failures);
}

uint64_t GpuImageDecoder::decoded_again() const {
  return impl_->decoded_again();
}

}  // namespace pinfeed
