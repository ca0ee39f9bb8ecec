// SPDX-License-Identifier: Apache-2.0
// The GPU part of `pinfeed doctor`: whether GPU memory can be shared between processes, how fast copies are,
// and what that means.
#include <algorithm>
#include <array>
#include <memory>

#include "client/cli/bar_chart.h"
#include "client/cli/copy_bench.h"
#include "client/cli/doctor.h"
#include "client/cli/doctor_probe.h"
#include "client/cli/text.h"
#include "common/base/byte_size.h"
#include "common/cuda/nvjpeg.h"
#include "common/os/host_limits.h"
#include "common/spec/names.h"

namespace pinfeed {
namespace {

constexpr double kClearly = 1.15;  // smaller ratios are not worth reporting
constexpr double kMostlyHidden = 0.7;
constexpr std::array<Source, 3> kSources = {Source::kPageable, Source::kPinned, Source::kPinThenCopy};

// In the daemon's order of preference.
constexpr std::array<Backend, 2> kBackends = {Backend::kVmmFd, Backend::kCudaIpc};

std::string Name(int ordinal) {
  return "GPU " + std::to_string(ordinal);
}
std::string Times(double factor) {
  return Fixed(factor, factor < 10 ? 1 : 0) + " times";
}
const char* NameOf(Source source) {
  return kSourceNames.at(static_cast<size_t>(source));
}

void ProbeBackends(const std::shared_ptr<const CudaDevice>& device, DoctorReport& report, Json& gpu) {
  bool any = false;
  Json backends = Json::array();
  for (const Backend backend : kBackends) {
    const Status status = ProbeWithProcess(device, backend);
    any = any || status.ok();
    backends.push_back(
        {{"name", BackendName(backend)}, {"works", status.ok()}, {"reason", status.message()}});
    const std::string what = Name(device->ordinal()) + " " + BackendName(backend);
    if (status.ok()) {
      report.Fine(what, "another process mapped this one's device memory and read it");
    } else {
      report.Note(what, status.message());
    }
  }
  gpu["backends"] = backends;
  if (!any)
    report.Broken(Name(device->ordinal()),
                  "no way of sharing device memory between processes works, so batches cannot go to this "
                  "GPU; in a container, see whether it has the GPU's device files and capabilities");
}

Status TryDecoder(const CudaDevice& device) {
  ASSIGN_OR_RETURN(const NvJpeg* const api, NvJpeg::Load());
  ASSIGN_OR_RETURN(const CudaScope scope, device.Enter());
  return nvjpeg::Decoder::Create(*api, nvjpeg::Backend::kHardware).status();
}

void ProbeDecoder(const CudaDevice& device, DoctorReport& report, Json& gpu) {
  const Status status = TryDecoder(device);
  gpu["decode"] = {{"works", status.ok()}, {"reason", status.message()}};
  const std::string what = Name(device.ordinal()) + " decode";
  if (status.ok())
    report.Fine(what, "its engines decode JPEG files (decode \"gpu\" and \"auto\")");
  else
    report.Note(what, status.message() + "; JPEG files are decoded by the daemon's workers");
}

Status MeasureRates(CopyBench& bench, DoctorReport& report, Json& gpu) {
  ASSIGN_OR_RETURN(const double pageable, bench.BytesPerSecond(Source::kPageable));
  ASSIGN_OR_RETURN(const double pinned, bench.BytesPerSecond(Source::kPinned));
  gpu["pageable_bytes_per_second"] = pageable;
  gpu["pinned_bytes_per_second"] = pinned;
  gpu["pinning_bytes_per_second"] = bench.pinning_bytes_per_second();
  gpu["buffer_bytes"] = bench.buffer_bytes();
  report.Fine(Name(static_cast<int>(UintField(gpu, "ordinal"))) + " copies",
              ByteRate(pinned) + " from pinned memory, " + ByteRate(pageable) +
                  " from pageable; pinning itself goes at " + ByteRate(bench.pinning_bytes_per_second()));
  return OkStatus();
}

Status MeasureTable(CopyBench& bench, Json& gpu, const DoctorProgress& progress, double from, double to) {
  Json copies = Json::array();
  const double steps = static_cast<double>(kTensorSets.size() * kSources.size() * 2);
  double step = 0;
  for (const TensorSet& tensors : kTensorSets) {
    for (const Source source : kSources) {
      for (const bool blocking : {true, false}) {
        progress(from + (to - from) * step++ / steps,
                 std::string("copying ") + tensors.name + ", " + NameOf(source));
        ASSIGN_OR_RETURN(const CopyFigure figure,
                         bench.Measure(tensors.count, tensors.bytes, source, blocking));
        copies.push_back({{"tensors", tensors.name},
                          {"count", tensors.count},
                          {"tensor_bytes", tensors.bytes},
                          {"source", NameOf(source)},
                          {"blocking", blocking},
                          {"copied", figure.copied},
                          {"milliseconds", figure.seconds * 1e3}});
      }
    }
  }
  gpu["copies"] = copies;
  Json overlaps = Json::array();
  for (const Source source : {Source::kPageable, Source::kPinned}) {
    ASSIGN_OR_RETURN(const OverlapFigure figure, bench.Overlap(source));
    overlaps.push_back({{"source", NameOf(source)},
                        {"copy_milliseconds", figure.copy_seconds * 1e3},
                        {"work_milliseconds", figure.work_seconds * 1e3},
                        {"both_milliseconds", figure.both_seconds * 1e3},
                        {"call_milliseconds", figure.call_seconds * 1e3},
                        {"hidden", figure.hidden()}});
  }
  gpu["overlap"] = overlaps;
  return OkStatus();
}

double Milliseconds(const Json& gpu, const char* tensors, Source source, bool blocking) {
  for (const Json& copy : ListField(gpu, "copies")) {
    if (TextField(copy, "tensors") == tensors && TextField(copy, "source") == NameOf(source) &&
        copy["blocking"] == blocking)
      return DoubleField(copy, "milliseconds");
  }
  return 0;
}

double Factor(double slower, double faster) {
  return faster > 0 ? slower / faster : 0;
}

// Returns "a is 2.1 times as fast as b".
std::string Compared(const char* a, const char* b, double b_over_a) {
  if (b_over_a >= kClearly) return std::string(a) + " is " + Times(b_over_a) + " as fast as " + b;
  if (b_over_a > 0 && 1 / b_over_a >= kClearly)
    return std::string(a) + " is " + Times(1 / b_over_a) + " as slow as " + b;
  return std::string(a) + " is as fast as " + b;
}

void Answer(const Json& gpu, DoctorReport& report) {
  const char* const large = kTensorSets[2].name;
  const char* const small = kTensorSets[1].name;
  const double pageable = Milliseconds(gpu, large, Source::kPageable, false);
  const double pinned = Milliseconds(gpu, large, Source::kPinned, false);
  const double first = Milliseconds(gpu, large, Source::kPinThenCopy, false);
  const double pays = Factor(pageable, pinned);
  report.answers.push_back(std::string("Does pinning pay here? ") +
                           (pays >= kClearly ? "Yes, for memory that is used again and again, as pinfeed's "
                                               "slots are: a copy from pinned memory is " +
                                                   Times(pays) + " as fast as one from pageable memory."
                                             : "Not for the speed of a copy: " +
                                                   Compared("pinned memory", "pageable memory", pays) + "."));
  report.answers.push_back("Copying each tensor into pinned memory first, in the training thread: " +
                           Compared("that", "copying it as it is", Factor(pageable, first)) + ".");
  const double blocking = Milliseconds(gpu, small, Source::kPinned, true);
  const double together = Milliseconds(gpu, small, Source::kPinned, false);
  report.answers.push_back(
      "1,000 small tensors: " + Compared("not to block", "blocking for each", Factor(blocking, together)) +
      "; one batch in one piece, as pinfeed copies it, has neither cost.");
  for (const Json& overlap : ListField(gpu, "overlap")) {
    const bool is_pinned = TextField(overlap, "source") == NameOf(Source::kPinned);
    const double hidden = DoubleField(overlap, "hidden");
    const double held =
        Factor(DoubleField(overlap, "call_milliseconds"), DoubleField(overlap, "copy_milliseconds"));
    report.answers.push_back(
        std::string(is_pinned ? "Does overlap work here? " : "The same from pageable memory: ") +
        (hidden >= kMostlyHidden       ? "Yes: "
         : hidden >= 1 - kMostlyHidden ? "In part: "
                                       : "No: ") +
        Percent(hidden) +
        " of a copy's time goes on under other work of the GPU, and the call holds its thread for " +
        Percent(std::min(held, 1.0)) + " of it.");
  }
  std::reverse(report.answers.end() - static_cast<std::ptrdiff_t>(ListField(gpu, "overlap").size()),
               report.answers.end());  // sorts pinned first
}

Status ExamineGpu(int ordinal, bool in_full, DoctorReport& report, const DoctorProgress& progress,
                  double from, double to) {
  progress(from, "opening GPU " + std::to_string(ordinal));
  ASSIGN_OR_RETURN(const std::shared_ptr<const CudaDevice> device, CudaDevice::Open(ordinal));
  report.gpus.push_back({{"ordinal", ordinal},
                         {"uuid", device->uuid()},
                         {"name", device->name()},
                         {"bytes", device->total_bytes()},
                         {"numa_node", device->numa_node()}});
  report.Fine(Name(ordinal),
              device->name() + ", " + ByteSize(device->total_bytes()) + ", " + device->uuid() +
                  (device->numa_node() >= 0 ? ", NUMA node " + std::to_string(device->numa_node()) : ""));
  progress(from + (to - from) * 0.1, "sharing memory of GPU " + std::to_string(ordinal));
  ProbeBackends(device, report, report.gpus.back());
  ProbeDecoder(*device, report, report.gpus.back());
  progress(from + (to - from) * 0.25, "copying to GPU " + std::to_string(ordinal));
  const Result<HostMemory> memory = ReadHostMemory();
  ASSIGN_OR_RETURN(const std::unique_ptr<CopyBench> bench,
                   CopyBench::Create(device, memory.ok() ? memory->available_bytes : 0));
  RETURN_IF_ERROR(MeasureRates(*bench, report, report.gpus.back()));
  if (!in_full) return OkStatus();
  RETURN_IF_ERROR(MeasureTable(*bench, report.gpus.back(), progress, from + (to - from) * 0.35, to));
  Answer(report.gpus.back(), report);
  return OkStatus();
}

}  // namespace

void ExamineGpus(DoctorReport& report, const DoctorProgress& progress) {
  const Result<const CudaDriver*> driver = CudaDriver::Load();
  if (!driver.ok())
    return report.Note("GPU",
                       "none can be used, so batches stay in host memory: " + driver.status().message());
  int version = 0;
  (void)(*driver)->cuDriverGetVersion(&version);  // cannot fail: it worked when the driver was loaded
  report.host["cuda_driver_version"] = version;
  report.Fine("CUDA driver",
              "for CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10));
  const Result<int> count = CudaDevice::Count();
  if (!count.ok()) return report.Broken("GPU", count.status().message());
  if (*count == 0) return report.Note("GPU", "the driver works, but this process sees no GPU");
  for (int ordinal = 0; ordinal < *count; ++ordinal) {
    const double each = 1.0 / (*count + 2);  // the first GPU takes longest
    const double from = ordinal == 0 ? 0 : each * (ordinal + 2);
    const Status status = ExamineGpu(ordinal, ordinal == 0, report, progress, from, each * (ordinal + 3));
    if (status.ok()) continue;
    if (status.code() == Code::kResourceExhausted) {
      report.Note(Name(ordinal), status.message());
    } else {
      report.Broken(Name(ordinal), status.message());
    }
  }
}

std::string PlotCopies(const DoctorReport& report) {
  for (const Json& gpu : report.gpus) {
    if (ListField(gpu, "copies").empty()) continue;
    BarChart chart("Copies to " + TextField(gpu, "name") + ", milliseconds (less is better)",
                   {"blocking", "not blocking"});
    for (const TensorSet& set : kTensorSets) {
      std::vector<Bar> bars;
      for (const Json& copy : ListField(gpu, "copies")) {
        if (TextField(copy, "tensors") != set.name) continue;
        const bool blocking = copy["blocking"] == true;
        const double milliseconds = DoubleField(copy, "milliseconds");
        bars.push_back({blocking ? TextField(copy, "source") : "", milliseconds, Fixed(milliseconds, 3),
                        blocking ? size_t{0} : size_t{1}});
      }
      chart.AddPanel(std::string(set.name) + " (" + set.size + ")", bars);
    }
    return chart.Svg();
  }
  return {};
}

}  // namespace pinfeed
