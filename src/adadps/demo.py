"""demo placeholder"""
