//go:build !seccomp

package launcher

// Without the build tag "seccomp" libcontainer has no seccomp, and no sandbox could start.
// So the build stops here: use go build -tags seccomp.
var _ = build_with_tags_seccomp
