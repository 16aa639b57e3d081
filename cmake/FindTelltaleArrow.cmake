# Finds Arrow C++ and Parquet (docs/decisions/0001-arrow-from-the-pyarrow-wheel.md):
#   1. a system Arrow of version 15 or later (its CMake packages);
#   2. else the headers and libraries of the pyarrow wheel, in TELLTALE_PYARROW_DIR (cache variable or
#      environment: the folder `pyarrow` itself) or in the project's virtual environment, .venv.
# Gives the targets telltale::arrow and telltale::parquet. Libraries of the wheel are copied into
# lib/telltale of the build tree, and what links them finds them there relative to itself.

if(TARGET telltale::parquet)
  return()
endif()

option(TELLTALE_SYSTEM_ARROW "use a system Arrow where there is one" ON)
set(TELLTALE_PYARROW_DIR "$ENV{TELLTALE_PYARROW_DIR}" CACHE PATH "folder `pyarrow` of the wheel")

if(TELLTALE_SYSTEM_ARROW)
  find_package(Arrow 15 QUIET CONFIG)
  find_package(Parquet 15 QUIET CONFIG)
  if(TARGET Arrow::arrow_shared AND TARGET Parquet::parquet_shared)
    add_library(telltale::arrow ALIAS Arrow::arrow_shared)
    add_library(telltale::parquet ALIAS Parquet::parquet_shared)
    message(STATUS "Arrow ${Arrow_VERSION} of the system")
    file(WRITE "${TELLTALE_LIB_DIR}/arrow-version" "${Arrow_VERSION}\n")
    set(TelltaleArrow_FOUND TRUE)
    return()
  endif()
endif()

set(_telltale_pyarrow "${TELLTALE_PYARROW_DIR}")
if(NOT _telltale_pyarrow)
  file(GLOB _telltale_candidates
       "${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/pyarrow")
  if(_telltale_candidates)
    list(GET _telltale_candidates 0 _telltale_pyarrow)
  endif()
endif()
file(GLOB _telltale_libarrow "${_telltale_pyarrow}/libarrow.so.[0-9]*")
file(GLOB _telltale_libparquet "${_telltale_pyarrow}/libparquet.so.[0-9]*")
set(_telltale_version_header "${_telltale_pyarrow}/include/arrow/util/config.h")

if(NOT _telltale_libarrow OR NOT _telltale_libparquet OR NOT EXISTS "${_telltale_version_header}")
  set(TelltaleArrow_FOUND FALSE)
  if(TelltaleArrow_FIND_REQUIRED)
    message(FATAL_ERROR
      "Arrow C++ was not found: neither a system package nor a pyarrow wheel in "
      "'${_telltale_pyarrow}' (looked in TELLTALE_PYARROW_DIR and ${CMAKE_SOURCE_DIR}/.venv). "
      "Run `make setup`, or give -DTELLTALE_PYARROW_DIR=.../site-packages/pyarrow.")
  endif()
  return()
endif()

list(GET _telltale_libarrow 0 _telltale_libarrow)
list(GET _telltale_libparquet 0 _telltale_libparquet)
file(STRINGS "${_telltale_version_header}" _telltale_version_line
     REGEX "define ARROW_VERSION_STRING")
string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" _telltale_arrow_version "${_telltale_version_line}")
if(_telltale_arrow_version VERSION_LESS 15)
  message(FATAL_ERROR "pyarrow ${_telltale_arrow_version} in ${_telltale_pyarrow} is too old: 15 or "
                      "later is needed.")
endif()

# The wheel's libraries must use the C++11 ABI of std::string, as every Debian library does; a
# manylinux2014 wheel does not, and would fail at link time with names that nobody understands.
file(STRINGS "${_telltale_libarrow}" _telltale_abi LIMIT_COUNT 1
     REGEX "_ZN5arrow6Status.*NSt7__cxx1112basic_string")
if(NOT _telltale_abi)
  message(FATAL_ERROR "${_telltale_libarrow} does not use the C++11 ABI: take a manylinux_2_28 wheel "
                      "of pyarrow.")
endif()

get_filename_component(_telltale_arrow_name "${_telltale_libarrow}" NAME)
get_filename_component(_telltale_parquet_name "${_telltale_libparquet}" NAME)
foreach(_telltale_library IN ITEMS "${_telltale_libarrow}" "${_telltale_libparquet}")
  get_filename_component(_telltale_name "${_telltale_library}" NAME)
  configure_file("${_telltale_library}" "${TELLTALE_LIB_DIR}/${_telltale_name}" COPYONLY)
endforeach()

# Python looks whether its own pyarrow is the same before both are loaded into one process.
file(WRITE "${TELLTALE_LIB_DIR}/arrow-version" "${_telltale_arrow_version}\n")

add_library(telltale::arrow SHARED IMPORTED GLOBAL)
set_target_properties(telltale::arrow PROPERTIES
  IMPORTED_LOCATION "${TELLTALE_LIB_DIR}/${_telltale_arrow_name}"
  INTERFACE_INCLUDE_DIRECTORIES "${_telltale_pyarrow}/include")
add_library(telltale::parquet SHARED IMPORTED GLOBAL)
set_target_properties(telltale::parquet PROPERTIES
  IMPORTED_LOCATION "${TELLTALE_LIB_DIR}/${_telltale_parquet_name}"
  INTERFACE_INCLUDE_DIRECTORIES "${_telltale_pyarrow}/include"
  INTERFACE_LINK_LIBRARIES telltale::arrow)
# Build trees and installations can be moved: libraries are found relative to what needs them. In the
# cache, since whoever links these targets lies in other folders.
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON CACHE BOOL "relative run paths in the build tree")
message(STATUS "Arrow ${_telltale_arrow_version} of the pyarrow wheel in ${_telltale_pyarrow}")
set(TelltaleArrow_FOUND TRUE)
