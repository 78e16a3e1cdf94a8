package compile

import libseccomp "github.com/seccomp/libseccomp-golang"

// notifyLevel is the API level of libseccomp 2.5 on Linux 5.7.
const notifyLevel = 6

// CanNotify says whether a filter can have a listener here. libcontainer asks for the same level.
func CanNotify() bool {
	level, err := libseccomp.GetAPI()
	return err == nil && level >= notifyLevel
}
