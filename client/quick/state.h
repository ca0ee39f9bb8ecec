// SPDX-License-Identifier: Apache-2.0
// What the extension knows of a feed. In: the keyword arguments of `Next`. Out: a `State`.
#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <cstddef>
#include <cstdint>

#include "common/base/unique_handle.h"
#include "pinfeed/pinfeed.h"

namespace pinfeed {

constexpr size_t kMaxFields = 64;

struct RefTraits {
  using Handle = PyObject*;
  static constexpr PyObject* Null() { return nullptr; }
  static void Close(PyObject* object) noexcept { Py_DECREF(object); }
};
using Ref = UniqueHandle<RefTraits>;  // with the GIL

inline Ref CopyOf(PyObject* object) {
  Py_XINCREF(object);
  return Ref(object);
}

// A tensor of each batch.
struct Field {
  Ref shape;
  Ref dtype;
  Ref offset;  // of views: in the slot
  Ref steps;   // of views: a tuple of functions, of which each gets what the one before gave, the first the
               // array
};

// What all batches of a feed have in common. The Python code arms it when it has returned a batch and the
// next one may be as plain, and disarms it before it changes anything.
struct State {
  Ref kept;  // whatever has the memory below
  pf_feed* const* feed = nullptr;
  pf_batch** out = nullptr;
  pf_batch_info* info = nullptr;
  decltype(&pf_next_info) next = nullptr;
  decltype(&pf_batch_release) release = nullptr;
  decltype(&pf_batch_write) write = nullptr;
  Ref acquire, unlock;  // the feed's lock
  Ref messages;         // of the library, which the Python code logs
  Ref batch_type;
  Ref output;           // None: the trainer gets a Batch; an empty tuple: a tuple; the fields' names: a dict
  Ref array;            // views: numpy.ndarray
  bool copies = false;  // views: of which no tensor keeps the slot
  bool read_only = false;
  Py_ssize_t slot_bytes = 0;
  Ref empty, address, stream;  // tensors that are written: a framework's memory
  uint32_t samples = 0;
  uint32_t max_held = 0;
  Field fields[kMaxFields];
  size_t field_count = 0;
  const void* armed_for = nullptr;  // the iterator
  uint64_t disarmed = 0;            // how many times
  bool taking = false;              // views are being made of a batch, which the trainer does not have yet
  bool dropped = false;             // a signal handler has moved the feed meanwhile, so nobody gets the batch
  uint64_t epoch = 0;
  Py_ssize_t held = 0;  // slots in use
};

// Returns the state that keyword arguments describe. Null, with an exception, if one is missing or is none of
// those that it can be.
State* NewState(PyObject* arguments);
void DeleteState(State* state);

}  // namespace pinfeed
