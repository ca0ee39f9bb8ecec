// SPDX-License-Identifier: Apache-2.0
// Damaged files and the known faults of the JPEG engines: they skip images and report success, ignore their
// stream, and refuse whole batches.
#include <dlfcn.h>

#include <chrono>
#include <random>
#include <thread>

#include "tests/gpu/decode_fixture.h"

namespace pinfeed {
namespace {

using Clock = std::chrono::steady_clock;

double Milliseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

// The engines with a fault, put in place of nvjpegDecodeBatchedEx. Functions of C have no state of their own.
const NvJpeg* real = nullptr;
unsigned char* elsewhere = nullptr;  // device memory for a whole image
constexpr size_t kSkipped = 5;

nvjpeg::ResultCode SkipImage(nvjpeg::Handle handle, nvjpeg::State state, const unsigned char* const* data,
                             const size_t* bytes, nvjpeg::Image* outputs, nvjpeg::Params* params,
                             CUstream stream) {
  for (unsigned char*& channel : outputs[kSkipped].channel)
    channel = channel == nullptr ? nullptr : elsewhere;
  return real->nvjpegDecodeBatchedEx(handle, state, data, bytes, outputs, params, stream);
}
nvjpeg::ResultCode SkipAll(nvjpeg::Handle, nvjpeg::State, const unsigned char* const*, const size_t*,
                           nvjpeg::Image*, nvjpeg::Params*, CUstream) {
  return nvjpeg::ResultCode::kSuccess;
}
nvjpeg::ResultCode Refuse(nvjpeg::Handle, nvjpeg::State, const unsigned char* const*, const size_t*,
                          nvjpeg::Image*, nvjpeg::Params*, CUstream) {
  return nvjpeg::ResultCode::kExecutionFailed;
}
nvjpeg::ResultCode LackMemory(nvjpeg::Handle, const unsigned char*, size_t, nvjpeg::Bitstream) {
  return nvjpeg::ResultCode::kAllocatorFailure;
}

bool Check(bool ok, const char* what) {
  if (!ok) std::printf("FAILED: %s\n", what);
  return ok;
}

bool AllOk(const std::vector<Status>& failures) {
  for (const Status& failure : failures) {
    if (failure.ok()) continue;
    std::printf("unexpected: %s\n", failure.ToString().c_str());
    return false;
  }
  return true;
}

UniqueCudaStream MakeStream(const CudaDevice& device) {
  const auto scope = device.Enter();
  CUstream stream = nullptr;
  Require(CudaStatus(device.driver().cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0),
                     "create a stream"));
  return UniqueCudaStream({&device, stream});
}

// One of the ways in which files are damaged.
File Damaged(const File& file, std::minstd_rand& random) {
  File damaged = file;
  const auto flip = [&](size_t from, size_t to) {
    damaged[from + random() % (to - from)] ^= std::byte(1U << random() % 8);
  };
  constexpr size_t kHeader = 620;  // of these files, about
  switch (random() % 6) {
    case 0:
      damaged.resize(random() % file.size());
      break;
    case 1:
      damaged.resize(file.size() - 1 - random() % 16);
      break;
    case 2:
      flip(2, kHeader);
      break;
    case 3:
      for (int i = 0; i < 20; ++i) flip(kHeader, file.size());
      break;
    case 4:
      flip(kHeader, file.size());
      break;
    default:
      for (size_t i = 2; i < file.size(); ++i) damaged[i] = std::byte(random() % 256);
      break;
  }
  return damaged;
}

}  // namespace

bool TestSkippedImages(const std::shared_ptr<const CudaDevice>& device, const std::vector<File>& photos) {
  real = Require(NvJpeg::Load());
  const DeviceMemory memory = Require(DeviceMemory::Allocate(device, GpuImageDecoder::kPixelBytes));
  elsewhere = reinterpret_cast<unsigned char*>(memory.address());  // NOLINT(performance-no-int-to-ptr)
  constexpr size_t kAll = GpuImageDecoder::kMaxImages;
  const struct {
    const char* name;
    decltype(NvJpeg::nvjpegDecodeBatchedEx) fault;
    size_t again;
  } faults[] = {{"an image is skipped", SkipImage, 1},
                {"all images are skipped", SkipAll, kAll},
                {"the batch is refused", Refuse, kAll}};
  bool ok = true;
  for (const auto& [name, fault, again] : faults) {
    NvJpeg faulty = *real;
    faulty.nvjpegDecodeBatchedEx = fault;
    DecodeFixture fixture(device, {.height = DecodeFixture::kSide, .width = DecodeFixture::kSide}, &faulty);
    const std::vector<Expectation> images = RandomCrops(fixture, photos, kAll);
    std::vector<Status> failures;
    fixture.Decode(images, failures);
    const Difference difference = fixture.Compare(images);
    std::printf("%-24s mean difference %.4f, decoded again %llu\n", name, difference.mean(),
                static_cast<unsigned long long>(fixture.decoder().decoded_again()));
    ok = Check(AllOk(failures) && difference.ok() && difference.worst_image <= 1.5 &&
                   fixture.decoder().decoded_again() == again,
               name) &&
         ok;
  }
  NvJpeg faulty = *real;
  faulty.nvjpegJpegStreamParseHeader = LackMemory;
  DecodeFixture fixture(device, {.height = DecodeFixture::kSide, .width = DecodeFixture::kSide}, &faulty);
  std::vector<Status> failures;
  const Status decoded = fixture.TryDecode(RandomCrops(fixture, photos, 2), failures);
  std::printf("nvJPEG lacks memory: %s\n", decoded.ToString().c_str());
  return Check(decoded.code() == Code::kResourceExhausted && AllOk(failures), "no image is at fault") && ok;
}

bool TestQueuedReaders(const std::shared_ptr<const CudaDevice>& device, const std::vector<File>& photos) {
  constexpr size_t kEach = GpuImageDecoder::kMaxImages / 2;
  constexpr uint64_t kWork = uint64_t{1}
                             << 30;  // copied again and again: half a millisecond or more each time
  constexpr int kCopies = 300;
  DecodeFixture fixture(device);
  std::vector<Expectation> images = RandomCrops(fixture, photos, 2 * kEach);
  const std::vector<Expectation> second(images.begin() + kEach, images.end());
  images.resize(kEach);
  const DeviceMemory work = Require(DeviceMemory::Allocate(device, 2 * kWork));
  const DeviceMemory read = Require(DeviceMemory::Allocate(device, kEach * fixture.output_bytes()));
  const UniqueCudaStream trainer = MakeStream(*device);
  const CUstream stream = trainer.get().native;
  const CudaDriver& driver = device->driver();
  std::vector<Status> failures;
  fixture.Decode(images, failures);
  bool ok = AllOk(failures);

  const auto scope = device->Enter();
  const auto begin = Clock::now();
  for (int i = 0; i < kCopies; ++i)
    Require(
        CudaStatus(driver.cuMemcpyDtoDAsync(work.address(), work.address() + kWork, kWork, stream), "copy"));
  Require(CudaStatus(driver.cuMemcpyDtoDAsync(read.address(), fixture.OutputAddress(0),
                                              kEach * fixture.output_bytes(), stream),
                     "read the first result"));
  const auto queued = Clock::now();
  ok = Check(driver.cuStreamQuery(stream) == CUDA_ERROR_NOT_READY, "the readers are not queued any more") &&
       ok;
  fixture.Decode(second, failures, kEach);
  const double decoded = Milliseconds(Clock::now() - queued);
  ok = AllOk(failures) && ok;
  Require(CudaStatus(driver.cuStreamSynchronize(stream), "wait for the readers"));
  const double waited = Milliseconds(Clock::now() - begin);

  Difference first_result;
  Difference second_result;
  std::vector<uint8_t> pixels(fixture.output_bytes());
  for (size_t i = 0; i < kEach; ++i) {
    Require(CudaStatus(driver.cuMemcpyDtoH(pixels.data(), read.address() + i * pixels.size(), pixels.size()),
                       "read"));
    first_result.Add(pixels, images[i].pixels);
    second_result.Add(fixture.Output(kEach + i), second[i].pixels);
  }
  std::printf("behind %.0f ms of readers: decoded in %.1f ms, mean differences %.4f and %.4f\n", waited,
              decoded, first_result.mean(), second_result.mean());
  return Check(waited >= 100 && first_result.ok() && second_result.ok(), "decoding behind queued readers") &&
         ok;
}

bool TestGraphCapture(const std::shared_ptr<const CudaDevice>& device, const std::vector<File>& photos) {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  const auto begin_capture =
      reinterpret_cast<decltype(&::cuStreamBeginCapture)>(::dlsym(library, "cuStreamBeginCapture_v2"));
  const auto end_capture =
      reinterpret_cast<decltype(&::cuStreamEndCapture)>(::dlsym(library, "cuStreamEndCapture"));
  const auto destroy_graph =
      reinterpret_cast<decltype(&::cuGraphDestroy)>(::dlsym(library, "cuGraphDestroy"));
  if (begin_capture == nullptr || end_capture == nullptr || destroy_graph == nullptr)
    return Check(false, "the driver captures no graphs");
  real = Require(NvJpeg::Load());
  static NvJpeg refusing;  // so that the decoder makes everything that it can need
  refusing = *real;
  refusing.nvjpegDecodeBatchedEx = Refuse;
  DecodeFixture fixture(device);
  const std::vector<Expectation> images = RandomCrops(fixture, photos, 8);
  const std::vector<ImageToDecode> encoded = fixture.Encode(images);
  const UniqueCudaStream trainer = MakeStream(*device);
  const auto scope = device->Enter();
  const CUstream stream = trainer.get().native;
  Require(CudaStatus(begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "begin a capture"));
  Status decoded;
  std::vector<Status> failures(images.size());
  std::thread([&] {
    for (const NvJpeg* const api : {real, static_cast<const NvJpeg*>(&refusing)}) {
      auto decoder = GpuImageDecoder::Create(
          device, {.height = DecodeFixture::kSide, .width = DecodeFixture::kSide}, *api);
      decoded = decoder.ok() ? (*decoder)->Decode(encoded, failures) : decoder.status();
      if (!decoded.ok()) return;
    }
  }).join();
  const CUresult copied =
      device->driver().cuMemcpyDtoDAsync(fixture.OutputAddress(GpuImageDecoder::kMaxImages - 1),
                                         fixture.OutputAddress(0), fixture.output_bytes(), stream);
  CUgraph graph = nullptr;
  const CUresult ended = end_capture(stream, &graph);
  std::printf("decoding while a graph is captured: the copy %d, the end %d, %s\n", copied, ended,
              decoded.ToString().c_str());
  const bool captured = copied == CUDA_SUCCESS && ended == CUDA_SUCCESS && graph != nullptr;
  if (graph != nullptr) (void)destroy_graph(graph);
  return Check(captured && decoded.ok() && AllOk(failures) && fixture.Compare(images).ok(),
               "a capture in global mode and decoding leave each other alone");
}

bool TestDamage(const std::shared_ptr<const CudaDevice>& device, const std::vector<File>& photos) {
  constexpr int kRounds = 60;
  constexpr size_t kDamagedEach = 9;
  constexpr double kMostMilliseconds = 5000;
  std::minstd_rand random(1);
  DecodeFixture fixture(device);
  const std::vector<Expectation> images = RandomCrops(fixture, photos, GpuImageDecoder::kMaxImages);
  std::vector<Status> failures;
  size_t refused = 0;
  size_t pictures = 0;
  double slowest = 0;
  bool ok = true;
  for (int round = 0; round < kRounds && ok; ++round) {
    std::vector<File> damaged;
    damaged.reserve(kDamagedEach);
    std::vector<Expectation> chunk = images;
    for (size_t i = 0; i < kDamagedEach; ++i) {
      Expectation& image = chunk[(i * 7 + static_cast<size_t>(round)) % chunk.size()];
      damaged.push_back(Damaged(*image.file, random));
      image.file = &damaged.back();
      image.pixels.clear();
    }
    const auto begin = Clock::now();
    fixture.Decode(chunk, failures);
    slowest = std::max(slowest, Milliseconds(Clock::now() - begin));
    Difference others;
    for (size_t i = 0; i < chunk.size(); ++i) {
      const std::vector<uint8_t> made = fixture.Output(i);
      if (!chunk[i].pixels.empty()) {
        ok = Check(failures[i].ok(), "a sound image beside damaged ones fails") && ok;
        others.Add(made, chunk[i].pixels);
      } else if (failures[i].ok()) {
        ++pictures;
      } else {
        if (refused++ < 3) std::printf("a damaged file: %s\n", failures[i].ToString().c_str());
        ok = Check(made == std::vector<uint8_t>(made.size()), "an image that failed is not zeros") && ok;
      }
    }
    ok = Check(others.ok() && others.worst_image <= 1.5, "sound images beside damaged ones differ") && ok;
  }
  std::printf(
      "damaged files: %zu refused, %zu made into pictures, decoded again %llu; the slowest chunk took %.1f "
      "ms\n",
      refused, pictures, static_cast<unsigned long long>(fixture.decoder().decoded_again()), slowest);
  return Check(slowest <= kMostMilliseconds, "damaged files take too long") &&
         Check(refused > 0, "none was refused") && ok;
}

}  // namespace pinfeed
