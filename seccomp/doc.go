// Package seccomp holds the system-call profiles of sandboxes and reads profiles from
// files. It is pure data: no cgo, no libseccomp, nothing is loaded into the kernel here.
//
// For a built-in profile use [Profile], for a user's own file [Load]. Both give the
// runtime-spec form that goes into a spec's linux.seccomp as it is. Package
// seccomp/compile finds out whether libseccomp can make a filter of it.
//
// A profile is an allow-list for the native architecture: a call that it does not name is
// answered with EPERM, and one newer than every named call with ENOSYS, which libcontainer
// adds when it loads the filter. docs/seccomp.md lists the calls that each profile allows
// and the reasons for missing ones.
package seccomp
