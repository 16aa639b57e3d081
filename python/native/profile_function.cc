// SPDX-License-Identifier: Apache-2.0
#include "profile_function.h"

#include <cstdlib>
#include <cstring>

namespace telltale::native {
namespace {

/// Where PyThreadState has c_profilefunc, by the minor version: the headers of the stable ABI hide
/// it. It does not move between the releases of one version, nor in a debug build.
constexpr std::size_t kNowhere = 0;
std::size_t Place(long minor) {
  if (minor == 9 || minor == 10) return 56;
  return minor == 11 ? 64 : kNowhere;
}

long MinorVersion() {
  const char* version = Py_GetVersion();  // "3.11.2 (main, ..."
  return std::strncmp(version, "3.", 2) == 0 ? std::strtol(version + 2, nullptr, 10) : 0;
}

}  // namespace

PyObject* HasProfileFunction(PyObject*, PyObject*) {
  static const std::size_t place = Place(MinorVersion());
  PyObject* answer = Py_None;
  if (place != kNowhere) {
    const void* function = nullptr;
    std::memcpy(&function, reinterpret_cast<const char*>(PyThreadState_Get()) + place,
                sizeof function);
    answer = function != nullptr ? Py_True : Py_False;
  }
  Py_INCREF(answer);
  return answer;
}

}  // namespace telltale::native
