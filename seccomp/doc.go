// Package seccomp holds the system-call profiles a sandbox runs under and
// reads profiles from files. It is pure data: no cgo, no libseccomp, nothing
// is loaded into the kernel here.
//
// For a built-in profile use [Profile], for a user's own file [Load]. Both give
// the runtime-spec form that goes into a spec's linux.seccomp as it is. Whether
// libseccomp can make a filter of it is answered by package seccomp/compile.
//
// A profile is an allow-list for the native architecture: a call it does not
// name is answered with EPERM, and one newer than every call it names with
// ENOSYS, which libcontainer adds when it loads the filter. docs/seccomp.md
// lists what each profile allows and why something is missing.
package seccomp
