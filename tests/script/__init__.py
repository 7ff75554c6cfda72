"""The core's behaviour as stories: text scripts of events, each with the actions that must follow."""
