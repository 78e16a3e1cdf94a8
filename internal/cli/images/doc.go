// Package images has the command image and the commands below it. It also pulls the image that a new
// sandbox uses, and shows the progress of a pull.
package images
