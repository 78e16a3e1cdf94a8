// Package oci has the commands that work on OCI containers, with the flags and messages of runc. Two
// programs have these commands: the whole one, which knows sandboxes, too, and a small one, which
// starts faster. So this package and its imports initialise little.
package oci
