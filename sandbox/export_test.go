package sandbox

// The providers of this package, for sandboxtest.Suite.

func NewLocalProvider() Provider { return newLocalProvider() }

func NewIsolatedProvider(c ManagerConfig) (Provider, error) { return newIsolatedProvider(c) }
