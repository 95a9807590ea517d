"""Importing this lets compilers that tests start find the Boost that the build was configured with."""
import os

if os.environ.get("BOOST_ROOT"):
    os.environ["CPLUS_INCLUDE_PATH"] = os.pathsep.join(
        filter(None, [os.path.join(os.environ["BOOST_ROOT"], "include"), os.environ.get("CPLUS_INCLUDE_PATH")]))
