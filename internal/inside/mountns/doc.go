// Package mountns runs code on a thread in another mount namespace: a private one, or a
// sandbox's. In a sandbox's namespace untrusted code chooses all names, so the functions
// here open paths without following links.
package mountns
