// Package review shows a person the changes of a sandbox, and asks which changes are
// applied, saved or thrown away. All paths and reasons that the sandbox has chosen are
// printed so that a terminal obeys nothing in them.
package review
