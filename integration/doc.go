// Package integration holds the black-box tests: they start the built binary
// as a user, Docker, containerd or podman would, and look at the host
// afterwards. It is not the place for tests of a single package; those lie
// beside their code. README.md says how to run one part by hand.
package integration
