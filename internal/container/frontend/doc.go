// Package frontend is the process in front of a container: the process that create, run,
// restore and exec leave between the caller and the container. The frontend reads the
// bundle, connects streams and terminals, passes descriptors, signals and exit statuses,
// writes the pid file, and tells the service manager when the container is ready.
package frontend
