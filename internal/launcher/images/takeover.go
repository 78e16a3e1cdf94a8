package images

import "github.com/sandbox-runtime/sandbox-runtime/images/builder"

// init does not return in the child that reads the content of images. The child is started from this program.
func init() { builder.TakeOver() }
