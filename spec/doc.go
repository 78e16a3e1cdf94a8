// Package spec describes a sandbox and turns the description into an OCI runtime
// specification.
//
// For most uses: fill a [Config], whose zero value is the safest sandbox. Call
// [Config.Complete], which fills in the defaults and reports every mistake by the name of
// the field. Hand the Config to a launcher. Launchers call [Build] with the facts that
// only the host knows (the place of the prepared root, the id range, the seccomp profile)
// and get the specification to start.
//
// The package is pure: it reads no file and makes no system call, and the same input gives
// the same bytes. Other packages decide about a configuration on a given host (does the
// workspace exist, may it be mounted).
package spec
