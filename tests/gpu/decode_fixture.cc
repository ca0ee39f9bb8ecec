// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/decode_fixture.h"

#include <algorithm>
#include <cstring>

#include "server/transform/gpu_plan.h"
#include "tests/unit/image/image_fixture.h"
namespace pinfeed {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kFileAlignment = 64;

}  // namespace

PinnedFiles::PinnedFiles(std::shared_ptr<const CudaDevice> device, size_t bytes)
    : bytes_((bytes + kPage - 1) / kPage * kPage),
      memory_(static_cast<std::byte*>(std::aligned_alloc(kPage, bytes_))),
      registration_(Require(HostRegistration::Create(std::move(device), memory_.get(), bytes_))) {}

std::span<const std::byte> PinnedFiles::Add(std::span<const std::byte> file) {
  PF_CHECK(file.size() <= bytes_ - used_, "the page-locked memory is full");
  std::byte* const to = memory_.get() + used_;
  if (!file.empty()) std::memcpy(to, file.data(), file.size());
  used_ = std::min(bytes_, (used_ + file.size() + kFileAlignment - 1) / kFileAlignment * kFileAlignment);
  return {to, file.size()};
}

DecodeFixture::DecodeFixture(std::shared_ptr<const CudaDevice> device,
                             const GpuImageDecoder::Options& options, const NvJpeg* nvjpeg)
    : device_(std::move(device)),
      options_(options),
      decoder_(Require(nvjpeg == nullptr ? GpuImageDecoder::Create(device_, options)
                                         : GpuImageDecoder::Create(device_, options, *nvjpeg))),
      outputs_(Require(DeviceMemory::Allocate(device_, GpuImageDecoder::kMaxImages * output_bytes()))),
      files_(device_, size_t{64} << 20) {}

std::optional<Expectation> DecodeFixture::Expect(const File& file, const TransformChain& chain,
                                                 uint64_t sample) {
  ImageDecoder header;
  const ImageSize size = Require(header.Open(file, false));
  const GeometryPlan plan = Require(worker_.Plan(file, chain, sample));
  const std::optional<ImagePlan> planned = PlanForGpu(plan, size);
  if (!planned) return std::nullopt;
  return Expectation{&file, *planned, Require(worker_.Make(file, plan))};
}

std::vector<ImageToDecode> DecodeFixture::Encode(const std::vector<Expectation>& images, size_t first) {
  files_.Clear();
  std::vector<ImageToDecode> encoded;
  for (size_t i = 0; i < images.size(); ++i) {
    const bool again = i > 0 && images[i].file == images[i - 1].file;
    const std::span<const std::byte> file = again ? encoded.back().bytes : files_.Add(*images[i].file);
    encoded.push_back({file, images[i].plan, OutputPointer(first + i)});
  }
  return encoded;
}

Status DecodeFixture::TryDecode(const std::vector<Expectation>& images, std::vector<Status>& failures,
                                size_t first) {
  failures.assign(images.size(), OkStatus());
  return decoder_->Decode(Encode(images, first), failures);
}

std::vector<uint8_t> DecodeFixture::Output(size_t i) const {
  std::vector<uint8_t> pixels(output_bytes());
  const auto scope = device_->Enter();
  Require(CudaStatus(device_->driver().cuMemcpyDtoH(pixels.data(), OutputAddress(i), pixels.size()),
                     "read pixels"));
  return pixels;
}

Difference DecodeFixture::Compare(const std::vector<Expectation>& images) const {
  Difference difference;
  for (size_t i = 0; i < images.size(); ++i) difference.Add(Output(i), images[i].pixels);
  return difference;
}

void Difference::Add(const std::vector<uint8_t>& made, const std::vector<uint8_t>& expected) {
  PF_CHECK(made.size() == expected.size(), "images of one size");
  uint64_t of_image = 0;
  for (size_t i = 0; i < made.size(); ++i) {
    const auto difference = static_cast<uint64_t>(std::abs(int{made[i]} - int{expected[i]}));
    of_image += difference;
    over_eight += difference > 8 ? 1 : 0;
  }
  sum += of_image;
  values += made.size();
  worst_image = std::max(worst_image, static_cast<double>(of_image) / static_cast<double>(made.size()));
}

std::vector<Expectation> RandomCrops(DecodeFixture& fixture, const std::vector<File>& photos, size_t count) {
  constexpr uint32_t kSide = DecodeFixture::kSide;
  const TransformChain chain = ChainOf({RandomResizedCrop{kSide, kSide}, RandomHorizontalFlip{}});
  std::vector<Expectation> images;
  for (size_t i = 0; i < count; ++i) images.push_back(*fixture.Expect(photos[i % photos.size()], chain, i));
  return images;
}

std::vector<File> ReadFiles(const std::filesystem::path& folder, size_t count) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".jpg") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<File> files;
  for (size_t i = 0; i < std::min(count, paths.size()); ++i) files.push_back(FileBytes(paths[i]));
  return files;
}

}  // namespace pinfeed
