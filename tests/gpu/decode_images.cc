// SPDX-License-Identifier: Apache-2.0
// The client's decoder on a real GPU: its pixels beside those of the daemon's workers, damaged files, the
// known faults of the JPEG engines, and rates.
//
//   decode_images FOLDER [SECONDS]
//
// FOLDER holds JPEG photographs of about 500 x 375 pixels (make_inputs.py). SECONDS (3) is the time of each
// rate; 0 measures none. The exit status is 1 if a test failed.

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
// tolerance, and, if asked for, no image was decoded without the engines.
bool Compare(const std::shared_ptr<const CudaDevice>& device, const char* what,
             const std::vector<File>& files, bool by_engines = false) {
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
    ok = ok && difference.ok() && images > 0 && !(by_engines && fixture.decoder().decoded_again() > 0);
  }
  return ok;
}

// Whether a part of an image has the same bytes when the engines write that part only as when they write all
// of it: chroma is interpolated across the part's border.
bool ComparePartsWithWholes(const std::shared_ptr<const CudaDevice>& device, const char* what,
                            const std::vector<File>& files) {
  constexpr int32_t kWidth = 33;
  constexpr int32_t kHeight = 17;
  DecodeFixture fixture(device, {.height = kHeight, .width = kWidth});
  std::vector<Expectation> chunk;
  size_t parts = 0;
  size_t different = 0;
  const auto run = [&] {
    std::vector<Status> failures;
    fixture.Decode(chunk, failures);
    for (size_t i = 0; i < chunk.size(); i += 2) {
      Require(failures[i]);
      Require(failures[i + 1]);
      Difference difference;
      difference.Add(fixture.Output(i), fixture.Output(i + 1));
      if (difference.sum == 0) continue;
      ++different;
      const ImagePlan& plan = chunk[i].plan;
      std::printf("%-11s %d x %d at %d, %d of %d x %d: mean difference %.4f, within 8: %.5f%%\n", what,
                  kWidth, kHeight, plan.crop_x, plan.crop_y, plan.width, plan.height, difference.mean(),
                  100 * difference.within_eight());
    }
    parts += chunk.size() / 2;
    chunk.clear();
  };
  for (const File& file : files) {
    ImageDecoder header;
    const ImageSize size = Require(header.Open(file, false));
    const int32_t right = size.width - kWidth;
    const int32_t bottom = size.height - kHeight;
    for (const int32_t x : {0, 1, 15, 16, 19, right - 1, right}) {
      for (const int32_t y : {0, 1, 15, 16, 18, bottom - 1, bottom}) {
        if (x < 0 || y < 0 || x > right || y > bottom) continue;
        ImagePlan part{
            .kind = static_cast<uint32_t>(ImagePlanKind::kJpeg), .width = size.width, .height = size.height};
        ImagePlan whole = part;
        part.crop_x = x;
        part.crop_y = y;
        part.crop_width = part.resized_width = kWidth;
        part.crop_height = part.resized_height = kHeight;
        whole.crop_width = whole.resized_width = size.width;
        whole.crop_height = whole.resized_height = size.height;
        whole.out_x = x;
        whole.out_y = y;
        chunk.push_back({&file, part, {}});
        chunk.push_back({&file, whole, {}});
        if (chunk.size() == GpuImageDecoder::kMaxImages) run();
      }
    }
  }
  run();
  std::printf("%-11s %zu parts of images: %zu differ from the whole image's%s\n", what, parts, different,
              different == 0 ? "" : "  FAILED");
  return different == 0 && parts > 0;
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
  // As the Python package does: see its _feed/gpu_queues.py.
  (void)::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  const double seconds = argc == 3 ? std::atof(argv[2]) : 3;
  const std::shared_ptr<const CudaDevice> device = Require(CudaDevice::Open(0));
  const std::vector<File> photos = ReadFiles(argv[1], 192);
  if (photos.size() < GpuImageDecoder::kMaxImages) {
    std::fprintf(stderr, "%s: fewer than %zu JPEG files in %s\n", argv[0], GpuImageDecoder::kMaxImages,
                 argv[1]);
    return 2;
  }
  std::printf("%s, %zu photographs\n", device->name().c_str(), photos.size());
  bool ok = Compare(device, "photographs", photos, true);
  // Chroma is nvJPEG's. The drawn files have edges that no photograph has: their figures are for information.
  (void)Compare(device, "4:2:0", Drawn(2, 2));
  (void)Compare(device, "4:2:2", Drawn(2, 1));
  (void)Compare(device, "4:4:4", Drawn(1, 1));
  (void)Compare(device, "grey", Drawn(0, 0));
  ok = ComparePartsWithWholes(device, "4:2:0", Drawn(2, 2)) && ok;
  ok = ComparePartsWithWholes(device, "4:2:2", Drawn(2, 1)) && ok;
  ok = ComparePartsWithWholes(device, "4:4:4", Drawn(1, 1)) && ok;
  ok = TestSkippedImages(device, photos) && ok;
  ok = TestQueuedReaders(device, photos) && ok;
  ok = TestGraphCapture(device, photos) && ok;
  ok = TestDamage(device, photos) && ok;
  if (seconds > 0) MeasureRates(device, photos, seconds);
  std::printf("%s\n", ok ? "all passed" : "FAILED");
  return ok ? 0 : 1;
}
