// Package store keeps the images of a host on disk, for all its users.
//
// A layer is the tar itself, under the digest of the tar (DiffID). An image is its config and an index: an
// EROFS file system that refers to the tars. Nothing is unpacked, so a removal is a few unlink(2).
//
// The bytes are shared, the rights are not. A [User] sees and uses only the layers that this user has handed
// in whole, and the images made of them. Root (uid 0) can use each layer. No result and no error tells a user
// about images of other users. The use of disk space and time is not hidden.
//
// The directory, mode 0700 and with a version, holds:
//
//	lock                      held for moments by a process that changes or reads names
//	drafts/                   files and directories that are being made or removed
//	layers/HEX/tar            a layer
//	images/HEX/config, ...    an image: config, index, list of layers; HEX is the digest of the config
//	users/UID/layers/HEX      the right of a user to a layer
//	users/UID/images/HEX      the right of a user to an image
//	users/UID/references/     the names of images
//	users/UID/uses/           sandboxes and snapshots that use an image: files, or links that a crash of the host can undo
//	users/UID/removing/HEX    an image whose removal has begun
//	users/UID/adding/         locks: a user adds a layer or an image once at a time
//	users/UID/pulls           the lock that all pulls of a user share
//
// The rules of the directory: a layer and an image have at least one user with a right to them; a user has a
// right to all layers of an image, if the user has a right to the image. A process that is killed can break
// only the first rule, or leave a draft or an unfinished removal. The next change of the store repairs that.
//
// All layers, images and configs are hostile. They are read in a child without rights (images/builder).
// The package does not know registries or sandboxes.
package store
