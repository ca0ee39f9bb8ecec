// SPDX-License-Identifier: Apache-2.0
// The client's decoder on a real GPU: its pixels beside those of the daemon's workers, damaged files, the
// known faults of the JPEG engines, and rates.
//
//   decode_images FOLDER [SECONDS]
//
// FOLDER holds JPEG photographs of about 500 x 375 pixels (make_inputs.py). SECONDS (3) is the time of each
// rate; 0 measures none. The exit status is 1 if a test failed.
#include <string_view>

#include "tests/gpu/decode_fixture.h"
#include "tests/unit/image/image_fixture.h"

namespace pinfeed {
namespace {

struct Chain {
  const char* name;
  uint32_t height;
  uint32_t width;
  TransformChain transforms;
};

std::vector<Chain> Chains() {
  std::vector<Chain> chains;
  const auto add = [&](const char* name, uint32_t height, uint32_t width,
                       const std::vector<TransformSpec>& specs) {
    chains.push_back({name, height, width, ChainOf(specs)});
  };
  add("random crop 224", 224, 224, {RandomResizedCrop{224, 224}, RandomHorizontalFlip{}});
  add("resize 256, centre 224", 224, 224, {Resize{0, 256}, CenterCrop{224, 224}});
  add("flips, bicubic 121x99", 121, 99,
      {RandomVerticalFlip{}, Interpolated(RandomResizedCrop{121, 99}, {"bicubic"}), RandomHorizontalFlip{}});
  add("lanczos 64", 64, 64, {Interpolated(RandomResizedCrop{64, 64}, {"lanczos"}), RandomVerticalFlip{}});
  add("nearest 150x90", 150, 90,
      {RandomHorizontalFlip{}, RandomVerticalFlip{}, Interpolated(Resize{150, 90}, {"nearest"})});
  add("grey, larger 301x411", 301, 411, {Grayscale{3}, Interpolated(Resize{301, 411}, {"bicubic"})});
  add("crop only 33x17", 33, 17, {CenterCrop{33, 17}});
  return chains;
}

// Decodes every file by every chain, in chunks, and compares. Returns whether each chain is within the
// tolerance.
bool Compare(const std::shared_ptr<const CudaDevice>& device, const char* what,
             const std::vector<File>& files) {
  bool ok = true;
  for (const Chain& chain : Chains()) {
    DecodeFixture fixture(device, {.height = chain.height, .width = chain.width});
    Difference difference;
    size_t images = 0;
    std::vector<Expectation> chunk;
    std::vector<Status> failures;
    const auto run = [&] {
      fixture.Decode(chunk, failures);
      for (size_t i = 0; i < chunk.size(); ++i) {
        Require(failures[i]);
        difference.Add(fixture.Output(i), chunk[i].pixels);
      }
      images += chunk.size();
      chunk.clear();
    };
    for (size_t i = 0; i < files.size(); ++i) {
      if (auto image = fixture.Expect(files[i], chain.transforms, i)) chunk.push_back(*std::move(image));
      if (chunk.size() == GpuImageDecoder::kMaxImages) run();
    }
    run();
    std::printf(
        "%-11s %-23s %5zu images: mean difference %.4f, within 8: %.5f%%, worst image %.3f, decoded again "
        "%llu%s\n",
        what, chain.name, images, difference.mean(), 100 * difference.within_eight(), difference.worst_image,
        static_cast<unsigned long long>(fixture.decoder().decoded_again()),
        difference.ok() ? "" : "  OUTSIDE THE TOLERANCE");
    ok = ok && difference.ok() && images > 0;
  }
  return ok;
}

std::vector<File> Drawn(int horizontal, int vertical) {
  std::vector<File> files;
  constexpr std::pair<int, int> kSizes[] = {{500, 375},  {333, 500}, {640, 480}, {35, 41},   {47, 64},
                                            {1023, 767}, {256, 256}, {401, 33},  {36, 1201}, {2048, 1536}};
  for (uint32_t i = 0; i < 20; ++i) {
    const auto& [width, height] = kSizes[i % std::size(kSizes)];
    files.push_back(MakeJpeg({.width = width,
                              .height = height,
                              .horizontal = horizontal,
                              .vertical = vertical,
                              .restart_interval = i % 3 == 2 ? 4 : 0,
                              .quality = 60 + 2 * static_cast<int>(i)},
                             i));
  }
  return files;
}

}  // namespace
}  // namespace pinfeed

int main(int argc, char** argv) {
  using namespace pinfeed;  // NOLINT(google-build-using-namespace): a program's main file
  if (argc != 2 && argc != 3) {
    std::fprintf(stderr, "usage: %s FOLDER [SECONDS]\n", argv[0]);
    return 2;
  }
  (void)std::setvbuf(stdout, nullptr, _IOLBF, 0);
  // As the Python package does: see its _gpu_queues.py.
  (void)::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  const double seconds = argc == 3 ? std::atof(argv[2]) : 3;
  const std::shared_ptr<const CudaDevice> device = Require(CudaDevice::Open(0));
  const std::vector<File> photos = ReadFiles(argv[1], 192);
  if (photos.size() < GpuImageDecoder::kMaxImages) {
    std::fprintf(stderr, "%s: fewer than 64 JPEG files in %s\n", argv[0], argv[1]);
    return 2;
  }
  std::printf("%s, %zu photographs\n", device->name().c_str(), photos.size());
  bool ok = Compare(device, "photographs", photos);
  // Chroma is nvJPEG's. The drawn files have edges that no photograph has: their figures are for information.
  (void)Compare(device, "4:2:0", Drawn(2, 2));
  (void)Compare(device, "4:2:2", Drawn(2, 1));
  (void)Compare(device, "4:4:4", Drawn(1, 1));
  (void)Compare(device, "grey", Drawn(0, 0));
  ok = TestSkippedImages(device, photos) && ok;
  ok = TestQueuedReaders(device, photos) && ok;
  ok = TestGraphCapture(device, photos) && ok;
  ok = TestDamage(device, photos) && ok;
  if (seconds > 0) MeasureRates(device, photos, seconds);
  std::printf("%s\n", ok ? "all passed" : "FAILED");
  return ok ? 0 : 1;
}
