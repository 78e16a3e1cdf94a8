// Package filtercache compiles seccomp profiles and keeps the compiled filters on disk.
package filtercache
