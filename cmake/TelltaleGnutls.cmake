# GnuTLS, which libcurl-gnutls brings along at run time, as the target telltale::gnutls
# (docs/decisions/0011-tls-by-gnutls.md).
include_guard(GLOBAL)
find_path(TELLTALE_GNUTLS_INCLUDE gnutls/gnutls.h REQUIRED)
find_library(TELLTALE_GNUTLS_LIBRARY gnutls REQUIRED)
add_library(telltale_gnutls INTERFACE)
target_include_directories(telltale_gnutls SYSTEM INTERFACE ${TELLTALE_GNUTLS_INCLUDE})
target_link_libraries(telltale_gnutls INTERFACE ${TELLTALE_GNUTLS_LIBRARY})
add_library(telltale::gnutls ALIAS telltale_gnutls)
