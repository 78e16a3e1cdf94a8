// Package erase removes directories of any size and depth that untrusted code has filled.
// It follows no link.
package erase
